//! A headroom watcher: one line per engine whenever its room has changed, for an autoscaler or a balancer's weights.
//!
//! `cargo run --example headroom [SOCKET]`

use std::{io::Write as _, time::Duration};

use gpuadmit_client::{DEFAULT_SOCKET, connect, v1::WatchHeadroomRequest};
use tokio::time::sleep;
use tokio_stream::StreamExt as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let socket = std::env::args().nth(1).unwrap_or_else(|| DEFAULT_SOCKET.into());
    let connection = connect(socket)?;
    loop {
        let request = WatchHeadroomRequest { min_interval_ms: Some(500), engine: None };
        match connection.node().watch_headroom(request).await {
            Ok(changes) => {
                let mut changes = changes.into_inner();
                while let Some(Ok(change)) = changes.next().await {
                    for one in change.engines {
                        // Absent is unknown, not zero.
                        let room =
                            one.headroom.map_or("unknown".into(), |room| room.tokens_lower.to_string());
                        writeln!(std::io::stdout(), "{} {:?} {room} tokens", one.engine, one.state())?;
                    }
                }
            }
            Err(status) => eprintln!("{}", connection.explain(&status)),
        }
        // The daemon has gone: it comes again.
        sleep(Duration::from_secs(1)).await;
    }
}
