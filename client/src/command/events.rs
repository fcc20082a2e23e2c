//! `gpuadmit events`

use clap::Args;
use gpuadmit_client::{CALL_DEADLINE, Connection, v1::WatchEventsRequest, within};
use tonic::Request;

use super::{
    Exit,
    output::{Output, json_line},
    watch::Stop,
};
use crate::render;

/// Show events: what an operator should know, once per cause.
#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Go on with new events until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
    /// Only events behind this one (its number, or `cursor` in JSON).
    #[arg(long, value_name = "N")]
    after: Option<u64>,
    /// Write JSON, one line per event.
    #[arg(long)]
    json: bool,
}

impl Events {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let mut stop = Stop::listen()?;
        tokio::select! {
            () = stop.wanted() => {}
            result = self.show(connection, output) => result?,
        }
        Ok(Exit::Fine)
    }

    async fn show(&self, connection: &Connection, output: &mut Output) -> anyhow::Result<()> {
        let paint = output.paint();
        let message = WatchEventsRequest { after: self.after, follow: self.follow };
        let request = if self.follow { Request::new(message) } else { within(CALL_DEADLINE, message) };
        let call = connection.node().watch_events(request).await;
        let mut events = call.map_err(|status| connection.explain(&status))?.into_inner();
        while !output.is_closed() {
            let next = events.message().await.map_err(|status| connection.explain(&status))?;
            let Some(response) = next else { break };
            let text = match &response.event {
                _ if self.json => json_line(&response)?,
                Some(event) => render::event::event(event, response.missed, paint),
                None => continue,
            };
            output.print(&text)?;
        }
        Ok(())
    }
}
