//! Headroom of every engine, a line or two each.

use gpuadmit_client::v1::WatchHeadroomResponse;

use super::{
    canvas::Canvas,
    engine::{self, ID_COLUMNS},
    paint::Mood,
    text::fitted,
};

/// All engines watched.
pub(crate) fn headroom(response: &WatchHeadroomResponse, canvas: Canvas) -> String {
    if response.engines.is_empty() {
        return "no engine was found\n".to_owned();
    }
    let line = |one: &gpuadmit_client::v1::EngineHeadroom| {
        let mut fields = vec![
            canvas.text(Mood::Strong, &fitted(&one.engine, ID_COLUMNS))
                + " "
                + &engine::painted_state(one.state, canvas),
        ];
        fields.extend(engine::headroom(one.headroom.as_ref()));
        canvas.flow("", ", ", &fields)
    };
    response.engines.iter().map(line).collect()
}
