//! `tandem top`: GPUs, tenants and queue, live on a terminal, once elsewhere.

use super::queue::{FoundJobs, running_first};
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
struct Readings {
    info: ApiResponse<DaemonInfo>,
    devices: ApiResponse<Devices>,
    found: FoundJobs,
}

impl Readings {
    fn take(client: &mut Client) -> Result<Self, ClientError> {
        let states = JobState::ALL.into_iter().filter(|state| !state.is_over()).collect();
        let query = JobQuery { states, latest_first: true, ..JobQuery::default() };
        Ok(Self {
            info: client.info()?,
            devices: client.devices()?,
            found: running_first(client, &query, JOBS_MAX)?,
        })
    }

    fn jobs(&self) -> BTreeMap<u64, JobLine> {
        self.found.jobs.iter().map(|job| (job.id, job.clone())).collect()
    }

    /// Devices with their tenants, and the queue.
    fn tables(&self, filter: Filter, colors: bool) -> [String; 2] {
        let devices = devices::table(&self.devices, &self.jobs(), colors);
        let jobs: Vec<JobLine> =
            self.found.jobs.iter().filter(|job| filter.shows(job.state)).cloned().collect();
        [devices, queue::table(&jobs, colors)]
    }

    fn headline(&self) -> String {
        let info = &self.info;
        let count = |state: JobState| info.jobs.get(state.name()).copied().unwrap_or(0);
        format!(
            "tandem {}, policy {}, {}, up {}: {} running, {} paused, {} waiting, {} held",
            clean(&info.version),
            clean(&info.policy),
            units::counted(info.devices, &format!("{} device", clean(&info.provider))),
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
    let first = Readings::take(&mut client)?;
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

fn plain(readings: &Readings, args: &ClientArgs) -> Result<(), Failure> {
    let [devices, jobs] = readings.tables(Filter::All, args.color.is_on());
    print(&format!("{}\n\n{devices}\n\n{jobs}", readings.headline()))
}

fn live(
    screen: &mut Screen,
    client: &mut Client,
    first: Readings,
    colors: bool,
) -> Result<(), Failure> {
    let mut readings = first;
    let mut problem: Option<String> = None;
    let mut taken = Instant::now();
    let mut view = QueueView::default();
    loop {
        let bottom = match &problem {
            Some(problem) if colors => problem.as_str().with(Color::Red).to_string(),
            Some(problem) => problem.clone(),
            None => view.keys(),
        };
        let tables = readings.tables(view.filter, colors);
        let rows = tables[1].lines().count().saturating_sub(HEADER_LINES);
        let height = screen.height()?;
        view.offset = view.offset.min(rows.saturating_sub(1));
        screen.show(&readings.headline(), &tables, view.offset, &bottom)?;
        if event::poll(REFRESH.saturating_sub(taken.elapsed()))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let interrupt =
                key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
            if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(());
            }
            view.press(key.code, height);
        }
        if taken.elapsed() >= REFRESH {
            taken = Instant::now();
            match Readings::take(client) {
                Ok(new) => (readings, problem) = (new, None),
                // The last readings stays until the daemon is back.
                Err(error) => problem = Some(clean(&error.to_string())),
            }
        }
    }
}

/// Lines of the queue above its first row.
const HEADER_LINES: usize = 2;

/// Which jobs of the queue are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Filter {
    #[default]
    All,
    /// Those that have devices.
    Running,
    /// Those that wait.
    Pending,
}

impl Filter {
    fn shows(self, state: JobState) -> bool {
        let waits = matches!(state, JobState::Pending | JobState::Held);
        match self {
            Filter::All => true,
            Filter::Running => !waits,
            Filter::Pending => waits,
        }
    }
}

/// The part of the queue that is on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct QueueView {
    /// Rows above the first one that is shown.
    offset: usize,
    filter: Filter,
}

impl QueueView {
    fn press(&mut self, key: KeyCode, height: usize) {
        let page = (height / 2).max(1);
        match key {
            KeyCode::Down | KeyCode::Char('j') => self.offset += 1,
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.offset += page,
            KeyCode::PageUp | KeyCode::Char('b') => self.offset = self.offset.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => self.offset = 0,
            KeyCode::End | KeyCode::Char('G') => self.offset = usize::MAX,
            KeyCode::Char('a') => *self = QueueView::default(),
            KeyCode::Char('r') => *self = QueueView { offset: 0, filter: Filter::Running },
            KeyCode::Char('p') => *self = QueueView { offset: 0, filter: Filter::Pending },
            _ => {}
        }
    }

    /// The line at the bottom of the screen.
    fn keys(self) -> String {
        let which = match self.filter {
            Filter::All => "all jobs",
            Filter::Running => "running jobs",
            Filter::Pending => "pending jobs",
        };
        format!(
            "{which}; q quits, arrows and PgUp/PgDn scroll, r running, p pending, a all; ~ marks a prediction"
        )
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

    fn height(&self) -> io::Result<usize> {
        let (_, height) = terminal::size()?;
        Ok(height.into())
    }

    fn show(
        &mut self,
        headline: &str,
        tables: &[String; 2],
        offset: usize,
        bottom: &str,
    ) -> io::Result<()> {
        let height = self.height()?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        write!(out, "{}", cursor::MoveTo(0, 0))?;
        let lines = page(headline, tables, offset, bottom, height);
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
    offset: usize,
    bottom: &'a str,
    height: usize,
) -> Vec<&'a str> {
    let [first, second] = tables;
    let mut lines = vec![headline, ""];
    lines.extend(first.lines().take(height / 2));
    lines.push("");
    lines.extend(second.lines().take(HEADER_LINES));
    lines.extend(second.lines().skip(HEADER_LINES + offset));
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
            let lines = page("head", &tables, 0, "bottom", height);
            assert_eq!(lines.len(), height);
            assert_eq!((lines[0], lines[height - 1]), ("head", "bottom"));
        }
        let lines = page("head", &tables, 0, "bottom", 24);
        assert_eq!((lines[13], lines[14], lines[15]), ("gpu11", "", "job0"));
        let lines = page("head", &tables, 0, "bottom", 100);
        assert_eq!((lines[21], lines[42], lines[43]), ("gpu19", "job19", ""));
    }

    #[test]
    fn the_queue_can_be_scrolled_and_filtered() {
        let table = |name: &str| (0..20).map(|row| format!("{name}{row}\n")).collect::<String>();
        let tables = [table("gpu"), table("job")];
        let lines = page("head", &tables, 5, "bottom", 24);
        // The header stays.
        assert_eq!((lines[15], lines[16], lines[17]), ("job0", "job1", "job7"));
        let mut view = QueueView::default();
        for (key, offset) in [
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 13),
            (KeyCode::Up, 12),
            (KeyCode::PageUp, 0),
            (KeyCode::Up, 0),
            (KeyCode::Char('x'), 0),
        ] {
            view.press(key, 24);
            assert_eq!(view.offset, offset, "{key:?}");
        }
        view.press(KeyCode::Char('p'), 24);
        assert!(view.filter.shows(JobState::Pending) && !view.filter.shows(JobState::Running));
        view.press(KeyCode::Char('r'), 24);
        assert!(!view.filter.shows(JobState::Held) && view.filter.shows(JobState::Paused));
        view.press(KeyCode::Char('a'), 24);
        assert_eq!(view, QueueView::default());
    }
}
