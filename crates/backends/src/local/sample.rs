//! Samples the resource usage of runs and devices at regular times.

use super::process::{StopState, ran_and_waited, stop_state};
use super::run::{LocalRun, RunPhase, lock};
use super::shared::LocalShared;
use crate::event::{BackendEvent, RunSample, UsageSample};
use crate::providers::DeviceSample;
use std::time::Instant;

impl LocalShared {
    /// The body of the sampler thread.
    pub(super) fn sample(&self) {
        let mut next = Instant::now() + self.options.sample_every;
        let mut busy = false;
        while !self.stopping() {
            let left = next.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                self.idle(left);
                continue;
            }
            next = Instant::now() + self.options.sample_every;
            let runs: Vec<_> = self
                .runs()
                .into_iter()
                .filter(|run| run.state().phase == RunPhase::Running)
                .collect();
            let (mut devices, resident) = {
                let mut provider = lock(&self.provider);
                let devices = provider.sample().unwrap_or_else(|error| {
                    tracing::warn!(%error, "cannot sample the devices");
                    Vec::new()
                });
                (devices, provider.counts_resident())
            };
            // Without runs there is nothing to report, unless foreign processes came or went.
            if runs.is_empty() && devices.iter().all(|device| device.processes.is_empty()) && !busy
            {
                continue;
            }
            busy = !runs.is_empty() || devices.iter().any(|device| !device.processes.is_empty());
            let ours: Vec<u32> = runs.iter().flat_map(|run| self.pids(run)).collect();
            let runs: Vec<RunSample> = runs
                .iter()
                .filter(|run| !self.is_held(run.id))
                .filter_map(|run| self.sample_run(run, &devices, resident))
                .collect();
            for device in &mut devices {
                device.processes = device.foreign(&ours);
            }
            self.emit(BackendEvent::Sampled(UsageSample { devices, runs }));
        }
    }

    fn pids(&self, run: &LocalRun) -> Vec<u32> {
        run.state().clone().members(&self.boot).iter().map(|stat| stat.pid).collect()
    }

    /// The usage of one run; `None` if it has ended.
    fn sample_run(
        &self,
        run: &LocalRun,
        devices: &[DeviceSample],
        resident: bool,
    ) -> Option<RunSample> {
        let view = run.state().clone();
        let members = view.members(&self.boot);
        if members.is_empty() {
            return None;
        }
        let ticks: u64 = members.iter().map(|stat| stat.ticks).sum();
        let pages: u64 = members.iter().map(|stat| stat.pages).sum();
        let on_devices = || {
            let used = devices.iter().flat_map(|device| &device.processes);
            used.filter(|(pid, _)| members.iter().any(|stat| stat.pid == *pid))
                .map(|(_, bytes)| bytes)
                .sum()
        };
        let members_pids: Vec<u32> = members.iter().map(|stat| stat.pid).collect();
        let (threads_s, wait_s) = match resident {
            true => members_pids.iter().map(|&pid| ran_and_waited(pid)).fold((0.0, 0.0), add),
            false => (0.0, 0.0),
        };
        Some(RunSample {
            run: run.id,
            cpu_s: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            memory_bytes: if resident {
                pages * rustix::param::page_size() as u64
            } else {
                on_devices()
            },
            wait_s: resident.then_some(wait_s),
            threads_s,
            device_use: if resident { None } else { device_use(&members_pids, devices) },
            stopped: members.iter().map(|stat| stop_state(stat.pid)).max()
                == Some(StopState::Stopped),
        })
    }
}

fn add(sum: (f64, f64), more: (f64, f64)) -> (f64, f64) {
    (sum.0 + more.0, sum.1 + more.1)
}

/// The use of the devices that only these processes use. Where others use a device, too, its utilisation does
/// not tell whose it is.
fn device_use(ours: &[u32], devices: &[DeviceSample]) -> Option<f64> {
    let is_ours = |(pid, _): &(u32, u64)| ours.contains(pid);
    let on = |device: &&DeviceSample| device.processes.iter().any(is_ours);
    let used = devices
        .iter()
        .filter(on)
        .map(|device| device.processes.iter().all(is_ours).then_some(device.utilisation).flatten());
    let used: Option<Vec<f64>> = used.collect();
    used.filter(|used| !used.is_empty()).map(|used| used.iter().sum::<f64>() / used.len() as f64)
}
