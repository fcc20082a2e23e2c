//! The terminal: taken over, read from, and put back as it was, also by a panic.

use std::{
    io::{self, stdout},
    panic,
    sync::Once,
    thread,
    time::Duration,
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::Show,
        event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};
use tokio::sync::mpsc;

use super::Wish;

/// How often the reader looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Keys that may wait; more are dropped.
const MAX_KEYS: usize = 32;

/// The terminal while the screen has it.
pub(crate) struct Taken(pub(crate) Terminal<CrosstermBackend<io::Stdout>>);

impl Taken {
    /// Takes it over until this is dropped, or the program panics.
    pub(crate) fn take() -> io::Result<Self> {
        static HOOKED: Once = Once::new();
        HOOKED.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                put_back();
                before(panic);
            }));
        });
        enable_raw_mode()?;
        let taken = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        taken.map(Self).inspect_err(|_| put_back())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        put_back();
    }
}

/// Nothing is left to be told when the terminal itself is gone.
fn put_back() {
    drop(execute!(stdout(), LeaveAlternateScreen, Show));
    drop(disable_raw_mode());
}

/// What the keys say, from a thread of its own; it ends when nobody listens any more.
pub(crate) fn wishes() -> io::Result<mpsc::Receiver<Wish>> {
    let (sender, receiver) = mpsc::channel(MAX_KEYS);
    thread::Builder::new().name("keys".into()).spawn(move || {
        while !sender.is_closed() {
            match event::poll(LOOK_EVERY).and_then(|any| if any { event::read().map(Some) } else { Ok(None) })
            {
                Ok(event) => {
                    if let Some(wish) = event.as_ref().and_then(wish) {
                        let _ = sender.try_send(wish);
                    }
                }
                // The terminal has gone.
                Err(_) => {
                    let _ = sender.try_send(Wish::Quit);
                    return;
                }
            }
        }
    })?;
    Ok(receiver)
}

fn wish(event: &Event) -> Option<Wish> {
    let key = match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        Event::Resize(..) => return Some(Wish::Redraw),
        _ => return None,
    };
    let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') if with_control => Some(Wish::Quit),
        KeyCode::Char('l') if with_control => Some(Wish::Redraw),
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('s') => Some(Wish::Sort),
        KeyCode::Up | KeyCode::Char('k') => Some(Wish::Older),
        KeyCode::Down | KeyCode::Char('j') => Some(Wish::Newer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Read as _,
        os::fd::OwnedFd,
        process::{Command, Stdio},
    };

    use rustix::{
        fs::{Mode, OFlags},
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
    };

    use super::*;

    /// Both ends of a new terminal: where a person would sit, and what a program has.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let path = ptsname(&person, vec![]).unwrap();
        let program = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        tcsetwinsize(&program, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        (person, program)
    }

    #[test]
    #[ignore = "the other half of the test below, which runs it in a terminal"]
    fn panics_on_the_screen() {
        let _taken = Taken::take().unwrap();
        panic!("on the screen");
    }

    #[test]
    fn a_panic_puts_the_terminal_back_before_it_is_told() {
        let (person, program) = terminal();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "top::terminal::tests::panics_on_the_screen", "--nocapture"]);
        let stdio = || Stdio::from(program.try_clone().unwrap());
        let status = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).status().unwrap();
        assert!(!status.success());
        let modes = tcgetattr(&program).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON), "{modes:?}");
        drop((command, program));
        // The read ends with EIO once nobody has the other end.
        let mut shown = vec![];
        let _ = File::from(person).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let place = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text:?} is not in {shown}"));
        assert!(place("\x1b[?1049h") < place("\x1b[?1049l"), "{shown}");
        assert!(place("\x1b[?1049l") < place("on the screen"), "{shown}");
    }
}
