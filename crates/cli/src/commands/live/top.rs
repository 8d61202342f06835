//! `tandem top`: GPUs, tenants and queue, live on a terminal, once elsewhere.

use super::queue::{FoundJobs, latest};
use super::{connect, devices, queue};
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::ClientArgs;
use crate::output::clean;
use crate::units;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Stylize};
use crossterm::terminal::{self, ClearType};
use crossterm::{cursor, execute};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use tandem_daemon::api::types::{DaemonInfo, Devices, JobLine};
use tandem_daemon::client::{ApiResponse, Client, ClientError, JobQuery};
use tandem_daemon::job::JobState;

const REFRESH: Duration = Duration::from_secs(1);
/// Jobs to fetch; no screen shows more.
const JOBS_MAX: u32 = 1000;

/// The state that one screen shows.
struct Snapshot {
    info: ApiResponse<DaemonInfo>,
    devices: ApiResponse<Devices>,
    found: FoundJobs,
}

impl Snapshot {
    fn take(client: &mut Client) -> Result<Self, ClientError> {
        let states = JobState::ALL.into_iter().filter(|state| !state.is_over()).collect();
        let query = JobQuery { states, latest_first: true, ..JobQuery::default() };
        Ok(Self {
            info: client.info()?,
            devices: client.devices()?,
            found: latest(client, &query, JOBS_MAX)?,
        })
    }

    fn jobs(&self) -> BTreeMap<u64, JobLine> {
        self.found.jobs.iter().map(|job| (job.id, job.clone())).collect()
    }

    /// Devices with their tenants, and the queue.
    fn tables(&self, colors: bool) -> [String; 2] {
        let devices = devices::table(&self.devices, &self.jobs(), colors);
        [devices, queue::table(&self.found.jobs, colors)]
    }

    fn headline(&self) -> String {
        let info = &self.info;
        let count = |state: JobState| info.jobs.get(state.name()).copied().unwrap_or(0);
        format!(
            "tandem {}, policy {}, {} {} devices, up {}: {} running, {} paused, {} waiting, {} held",
            clean(&info.version),
            clean(&info.policy),
            info.devices,
            clean(&info.provider),
            units::words(info.up_s),
            count(JobState::Running),
            count(JobState::Paused),
            count(JobState::Pending),
            count(JobState::Held),
        )
    }
}

pub(super) fn run(args: &ClientArgs) -> Result<(), Failure> {
    let mut client = connect(args)?;
    let first = Snapshot::take(&mut client)?;
    if args.json {
        let parse =
            |raw: &str| serde_json::from_str::<serde_json::Value>(raw).map_err(Failure::failed);
        let (info, devices) = (parse(&first.info.raw)?, parse(&first.devices.raw)?);
        let answer = serde_json::json!({
            "schema": 1, "info": info, "devices": devices["devices"], "jobs": first.found.raw,
        });
        return print(&answer.to_string());
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return plain(&first, args);
    }
    let mut screen = Screen::open()?;
    live(&mut screen, &mut client, first, args.color.is_on())
}

fn plain(snapshot: &Snapshot, args: &ClientArgs) -> Result<(), Failure> {
    let [devices, jobs] = snapshot.tables(args.color.is_on());
    print(&format!("{}\n\n{devices}\n\n{jobs}", snapshot.headline()))
}

fn live(
    screen: &mut Screen,
    client: &mut Client,
    first: Snapshot,
    colors: bool,
) -> Result<(), Failure> {
    let mut snapshot = first;
    let mut problem: Option<String> = None;
    let mut taken = Instant::now();
    loop {
        let bottom = match &problem {
            Some(problem) if colors => problem.as_str().with(Color::Red).to_string(),
            Some(problem) => problem.clone(),
            None => "q quits; a rate is relative to running alone, ~ marks a prediction".to_owned(),
        };
        screen.show(&snapshot.headline(), &snapshot.tables(colors), &bottom)?;
        if event::poll(REFRESH.saturating_sub(taken.elapsed()))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let interrupt =
                key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
            if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(());
            }
        }
        if taken.elapsed() >= REFRESH {
            taken = Instant::now();
            match Snapshot::take(client) {
                Ok(new) => (snapshot, problem) = (new, None),
                // The last snapshot stays until the daemon is back.
                Err(error) => problem = Some(clean(&error.to_string())),
            }
        }
    }
}

/// The terminal's second screen. The first one comes back when this is dropped, or at a panic.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(
            io::stdout(),
            terminal::EnterAlternateScreen,
            terminal::DisableLineWrap,
            cursor::Hide
        )?;
        Ok(screen)
    }

    fn show(&mut self, headline: &str, tables: &[String; 2], bottom: &str) -> io::Result<()> {
        let (_, height) = terminal::size()?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        write!(out, "{}", cursor::MoveTo(0, 0))?;
        let lines = page(headline, tables, bottom, height.into());
        for (row, line) in lines.iter().enumerate() {
            let line = if row == 0 {
                line.attribute(Attribute::Bold).to_string()
            } else {
                line.to_string()
            };
            // Without wrapping the terminal cuts what is too long for it.
            let end = if row + 1 < lines.len() { "\r\n" } else { "" };
            write!(out, "{line}{}{end}", terminal::Clear(ClearType::UntilNewLine))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Best effort: an error cannot be reported any more.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(
        io::stdout(),
        terminal::EnableLineWrap,
        terminal::LeaveAlternateScreen,
        cursor::Show
    );
}

/// The lines of a screen. The first table gets what it needs, but leaves half of the screen to the second.
fn page<'a>(
    headline: &'a str,
    tables: &'a [String; 2],
    bottom: &'a str,
    height: usize,
) -> Vec<&'a str> {
    let [first, second] = tables;
    let mut lines = vec![headline, ""];
    lines.extend(first.lines().take(height / 2));
    lines.push("");
    lines.extend(second.lines());
    lines.resize(height.saturating_sub(1), "");
    lines.push(bottom);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_filled_and_both_tables_have_a_part_of_it() {
        let table = |name: &str| (0..20).map(|row| format!("{name}{row}\n")).collect::<String>();
        let tables = [table("gpu"), table("job")];
        for height in [5, 10, 24, 100] {
            let lines = page("head", &tables, "bottom", height);
            assert_eq!(lines.len(), height);
            assert_eq!((lines[0], lines[height - 1]), ("head", "bottom"));
        }
        let lines = page("head", &tables, "bottom", 24);
        assert_eq!((lines[13], lines[14], lines[15]), ("gpu11", "", "job0"));
        let lines = page("head", &tables, "bottom", 100);
        assert_eq!((lines[21], lines[42], lines[43]), ("gpu19", "job19", ""));
    }
}
