//! Headroom of every engine, a line or two each.

use gpuadmit_client::v1::WatchHeadroomResponse;

use super::{
    engine,
    paint::{Mood, Paint},
    text::{fitted, flow},
};

/// All engines watched.
pub(crate) fn headroom(response: &WatchHeadroomResponse, paint: Paint) -> String {
    if response.engines.is_empty() {
        return "no engine was found\n".to_owned();
    }
    let line = |one: &gpuadmit_client::v1::EngineHeadroom| {
        let mut fields = vec![
            paint.text(Mood::Strong, &fitted(&one.engine, 40))
                + " "
                + &engine::painted_state(one.state, paint),
        ];
        fields.extend(engine::headroom(one.headroom.as_ref()));
        flow("", ", ", &fields)
    };
    response.engines.iter().map(line).collect()
}
