//! `gpuadmit events`

mod place;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use gpuadmit_client::{
    CALL_DEADLINE, CallError, Connection,
    v1::{StatusRequest, WatchEventsRequest, WatchEventsResponse},
    within,
};
use tokio::time::sleep;
use tonic::{Code, Request, Streaming};

use self::place::{CursorFile, Place};
use super::{
    Exit,
    output::{Output, json_line},
    watch::Stop,
};
use crate::render::{self, Names};

/// Time between two tries to reach a daemon that has gone.
const PAUSE: Duration = Duration::from_millis(500);

/// Show events: what an operator should know, once per cause.
#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Go on with new events until Ctrl-C, also when the daemon is started again.
    #[arg(long, short)]
    follow: bool,
    /// Only events behind this one: its number, decimal or hexadecimal behind 0x, or its `resume` in JSON, which holds
    /// across restarts of the daemon.
    #[arg(long, value_name = "EVENT")]
    after: Option<Place>,
    /// Only events behind the one kept in this file; the last one shown is kept there.
    #[arg(long, value_name = "FILE", conflicts_with = "after")]
    cursor_file: Option<PathBuf>,
    /// Say behind each event what it means and what to do.
    #[arg(long, short = 'x', conflicts_with = "json")]
    explain: bool,
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

    async fn show(self, connection: &Connection, output: &mut Output) -> anyhow::Result<()> {
        let file = self.cursor_file.clone().map(CursorFile);
        let mut last = match &file {
            Some(file) => file.read()?,
            None => self.after.clone(),
        };
        let names = if self.json { Names::default() } else { names(connection).await? };
        let mut events = self.open(connection, last.as_ref()).await?;
        while !output.is_closed() {
            match events.message().await.map_err(|status| connection.explain(&status)) {
                Ok(Some(response)) => {
                    self.print(&response, &names, output)?;
                    let place = last.insert(Place::of(&response));
                    if let Some(file) = &file {
                        file.write(place)?;
                    }
                }
                Ok(None) if !self.follow => break,
                Err(error) if !self.follow || !passes(&error) => return Err(error.into()),
                Ok(None) | Err(_) => events = self.open_again(connection, last.as_ref()).await?,
            }
        }
        Ok(())
    }

    async fn open(
        &self,
        connection: &Connection,
        behind: Option<&Place>,
    ) -> Result<Streaming<WatchEventsResponse>, CallError> {
        let message = WatchEventsRequest {
            after: behind.and_then(Place::number),
            follow: self.follow,
            resume: behind.and_then(Place::resume),
        };
        let request = if self.follow { Request::new(message) } else { within(CALL_DEADLINE, message) };
        let call = connection.node().watch_events(request).await;
        Ok(call.map_err(|status| connection.explain(&status))?.into_inner())
    }

    /// [`Self::open`] once the daemon is back.
    async fn open_again(
        &self,
        connection: &Connection,
        behind: Option<&Place>,
    ) -> Result<Streaming<WatchEventsResponse>, CallError> {
        eprintln!("gpuadmit: the daemon has gone; events go on when it is back");
        let mut behind = behind;
        loop {
            sleep(PAUSE).await;
            match self.open(connection, behind).await {
                Err(error) if passes(&error) => {}
                // A number of the run before: all of the new run's events are news.
                Err(CallError::Refused { code: Code::NotFound, .. }) if behind.is_some() => behind = None,
                opened => return opened,
            }
        }
    }

    fn print(
        &self,
        response: &WatchEventsResponse,
        names: &Names,
        output: &mut Output,
    ) -> anyhow::Result<()> {
        let canvas = output.canvas();
        let text = match &response.event {
            _ if self.json => json_line(response)?,
            Some(event) if self.explain => {
                render::event::event(event, response, names, canvas)
                    + &render::event::explanation(&event.kind)
            }
            Some(event) => render::event::event(event, response, names, canvas),
            None => return Ok(()),
        };
        Ok(output.print(&text)?)
    }
}

/// Names of the daemon's devices.
async fn names(connection: &Connection) -> Result<Names, CallError> {
    let answer = connection.node().status(within(CALL_DEADLINE, StatusRequest { events: Some(0) })).await;
    answer.map(|status| Names::of(&status.get_ref().devices)).map_err(|status| connection.explain(&status))
}

/// Whether such an error passes when the daemon is back.
fn passes(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } | CallError::TimedOut { .. } => true,
        CallError::NotAllowed { .. } => false,
        CallError::Refused { code, .. } => {
            matches!(code, Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal)
        }
    }
}
