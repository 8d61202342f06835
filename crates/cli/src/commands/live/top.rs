//! `tandem top`: GPUs, tenants and queue, live on a terminal, once elsewhere.

use super::queue::{Found, latest, number, rate};
use super::{connect, devices, queue};
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::CommonArgs;
use crate::output::{clean, name};
use crate::units;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tandem_daemon::api::types::{DaemonInfo, Devices, JobLine};
use tandem_daemon::client::{ApiResponse, Client, ClientError, JobQuery};
use tandem_daemon::job::JobState;

const REFRESH: Duration = Duration::from_secs(1);
/// Jobs that are fetched; more do not fit on any screen.
const JOBS_MAX: u32 = 1000;

/// What is shown.
struct Snapshot {
    info: ApiResponse<DaemonInfo>,
    devices: ApiResponse<Devices>,
    found: Found,
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

pub(super) fn run(args: &CommonArgs) -> Result<(), Failure> {
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
    let mut terminal = ratatui::try_init()?;
    let colors = args.color.is_on();
    let ended = live(&mut terminal, &mut client, first, colors);
    ratatui::try_restore()?;
    ended
}

fn plain(snapshot: &Snapshot, args: &CommonArgs) -> Result<(), Failure> {
    let colors = args.color.is_on();
    let devices = devices::table(&snapshot.devices, &snapshot.jobs(), colors);
    let jobs = queue::table(&snapshot.found.jobs, colors);
    print(&format!("{}\n\n{devices}\n\n{jobs}", snapshot.headline()))
}

fn live(
    terminal: &mut DefaultTerminal,
    client: &mut Client,
    first: Snapshot,
    colors: bool,
) -> Result<(), Failure> {
    let mut snapshot = first;
    let mut problem = None;
    let mut taken = Instant::now();
    loop {
        terminal.draw(|frame| draw(frame, &snapshot, problem.as_deref(), colors))?;
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
                // The last picture stays until the daemon is back.
                Err(error) => problem = Some(clean(&error.to_string())),
            }
        }
    }
}

fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, problem: Option<&str>, colors: bool) {
    let area = frame.area();
    // Devices get what they need, but leave at least half to the queue.
    let devices =
        u16::try_from(snapshot.devices.devices.len()).unwrap_or(u16::MAX).saturating_add(1);
    let rows = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(devices.min(area.height / 2)),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [top, _, gpus, _, jobs, bottom] = Layout::vertical(rows).areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(snapshot.headline(), bold), top);
    frame.render_widget(device_table(snapshot, colors), gpus);
    frame.render_widget(job_table(snapshot, colors), jobs);
    let last = match problem {
        Some(problem) => Line::styled(problem.to_owned(), tinted(Some(Color::Red), colors)),
        None => Line::raw("q quits; a rate is relative to running alone, ~ marks a prediction"),
    };
    frame.render_widget(last, bottom);
}

fn tinted(color: Option<Color>, colors: bool) -> Style {
    color.filter(|_| colors).map_or_else(Style::new, |color| Style::new().fg(color))
}

fn header<const N: usize>(titles: [&'static str; N]) -> Row<'static> {
    Row::new(titles).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn device_table(snapshot: &Snapshot, colors: bool) -> Table<'static> {
    let jobs = snapshot.jobs();
    let rows = snapshot.devices.devices.iter().map(|device| {
        let state = tinted((device.state != "up").then_some(Color::Yellow), colors);
        let busy =
            device.utilization.map(|busy| format!("{:.0} %", busy * 100.0)).unwrap_or_default();
        Row::new([
            Cell::new(device.index.to_string()),
            Cell::new(name(&device.kind)),
            Cell::new(clean(&device.state)).style(state),
            Cell::new(devices::memory(device)),
            Cell::new(busy),
            Cell::new(devices::throughput(device)),
            Cell::new(devices::tenant_list(device, &jobs)),
        ])
    });
    let widths = [
        Constraint::Length(4),
        Constraint::Length(20),
        Constraint::Length(8),
        Constraint::Length(22),
        Constraint::Length(6),
        Constraint::Length(10),
        Constraint::Min(20),
    ];
    let titles = ["gpu", "kind", "state", "memory", "busy", "throughput", "tenants"];
    Table::new(rows.collect::<Vec<_>>(), widths).header(header(titles))
}

fn job_table(snapshot: &Snapshot, colors: bool) -> Table<'static> {
    let rows = snapshot.found.jobs.iter().map(|job| {
        let color = match job.state {
            JobState::Running => Some(Color::Green),
            JobState::Pending | JobState::Paused | JobState::Held => Some(Color::Yellow),
            _ => None,
        };
        Row::new([
            Cell::new(number(job)),
            Cell::new(name(&job.name)),
            Cell::new(name(&job.user)),
            Cell::new(job.state.letters()).style(tinted(color, colors)),
            Cell::new(units::clock(job.run_s)),
            Cell::new(job.gpus.to_string()),
            Cell::new(rate(job)),
            Cell::new(queue::list(&job.beside)),
            Cell::new(job.reason.as_deref().map(clean).unwrap_or_default()),
        ])
    });
    let widths = [
        Constraint::Length(12),
        Constraint::Length(24),
        Constraint::Length(10),
        Constraint::Length(3),
        Constraint::Length(11),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(12),
        Constraint::Min(10),
    ];
    let titles = ["job", "name", "user", "st", "time", "gpus", "rate", "beside", "reason"];
    Table::new(rows.collect::<Vec<_>>(), widths).header(header(titles))
}
