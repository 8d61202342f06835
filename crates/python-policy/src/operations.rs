//! What a policy may ask for while it plans. Everything that would make a plan illegal is refused here.

use crate::PythonPolicyError;
use crate::process::PythonProcess;
use serde_json::{Value, json};
use tandem_core::{Draft, Job, JobId, Placement, Span, Time};
use tandem_policies::kit::{PairRates, sub_batches_on};

/// Hands over the state and answers operations until the plan is done.
pub(crate) fn exchange(
    process: &mut PythonProcess,
    state: &Value,
    draft: &mut Draft<'_>,
) -> Result<(), PythonPolicyError> {
    process.send(state)?;
    loop {
        let message = process.receive()?;
        let words = message.as_array().map(Vec::as_slice).unwrap_or_default();
        let answer = match words {
            [Value::String(verb), wake] if verb == "done" => {
                wake_in(draft, wake);
                return Ok(());
            }
            [Value::String(verb), Value::String(problem)] if verb == "error" => {
                return Err(PythonPolicyError::Failed(problem.clone()));
            }
            [Value::String(verb), job] => one(draft, verb, job),
            [Value::String(verb), job, other] => two(draft, verb, job, other),
            _ => Err(format!("the process said {message}")),
        };
        process.send(&match answer {
            Ok(answer) => json!([answer]),
            Err(problem) => json!({ "error": problem }),
        })?;
    }
}

/// An operation on one job.
fn one(draft: &mut Draft<'_>, verb: &str, job: &Value) -> Result<Value, String> {
    let job = find(draft, job)?.id();
    match verb {
        "place" => {
            waits(draft, job)?;
            Ok(json!(draft.place_exclusive(job)))
        }
        "drop" => {
            let found = draft.job(job);
            if draft.placement(job).is_none() {
                return Err(format!("job {} does not run", job.0));
            }
            if found.placement().is_some() && !found.spec.stoppable {
                return Err(format!("job {} cannot be stopped", job.0));
            }
            draft.drop(job);
            Ok(json!(true))
        }
        _ => Err(format!("there is no operation '{verb}'")),
    }
}

/// An operation on two jobs.
fn two(draft: &mut Draft<'_>, verb: &str, job: &Value, host: &Value) -> Result<Value, String> {
    let (job, host) = (find(draft, job)?.id(), find(draft, host)?.id());
    if draft.placement(host).is_none() {
        return Err(format!("job {} does not run", host.0));
    }
    match verb {
        "rates" => Ok(rates(draft, job, host).map_or(Value::Null, |rates| json!(rates))),
        "share" => {
            waits(draft, job)?;
            Ok(json!(share(draft, job, host)))
        }
        _ => Err(format!("there is no operation '{verb}'")),
    }
}

fn find<'d>(draft: &'d Draft<'_>, job: &Value) -> Result<&'d Job, String> {
    let id = job.as_u64().and_then(|id| u32::try_from(id).ok()).map(JobId);
    let found = id.and_then(|id| draft.find(id));
    let found = found.filter(|job| job.spec.partition == draft.partition());
    found.ok_or_else(|| format!("there is no job {job} in this partition"))
}

fn waits(draft: &Draft<'_>, job: JobId) -> Result<(), String> {
    match draft.placement(job) {
        Some(_) => Err(format!("job {} runs already", job.0)),
        None => Ok(()),
    }
}

/// The believed rates of a waiting job beside a running one, and of that one.
fn rates(draft: &Draft<'_>, job: JobId, host: JobId) -> Option<[f64; 2]> {
    let rates = PairRates::of(draft, draft.job(job), draft.job(host))?;
    let share = |rate: tandem_core::Ratio| f64::from(rate.ppm().0) / 1e6;
    Some([share(rates.own), share(rates.host)])
}

/// Places a job on the GPUs of a host of its size that is alone there; `false` if that is not possible.
fn share(draft: &mut Draft<'_>, job: JobId, host: JobId) -> bool {
    let Some(placement) = draft.placement(host) else { return false };
    let gpus = placement.gpus.clone();
    let is_alone = gpus.iter().all(|&gpu| draft.tenants(gpu) == [host]);
    let is_fit = draft.job(job).spec.gpus as usize == gpus.len() && !placement.paused;
    let takes_more = gpus.iter().all(|&gpu| !draft.occupancy().is_closed(gpu));
    if !is_alone || !is_fit || !takes_more || rates(draft, job, host).is_none() {
        return false;
    }
    if sub_batches_on(draft, draft.job(job), &gpus, false).is_none() {
        return false;
    }
    draft.place(job, Placement::on(gpus.iter().copied()));
    true
}

/// Asks for a plan in some seconds.
fn wake_in(draft: &mut Draft<'_>, wake: &Value) {
    /// A century: later is never.
    const LATEST_S: f64 = 3.2e9;
    if let Some(seconds) = wake.as_f64().filter(|seconds| (0.0..LATEST_S).contains(seconds)) {
        // At least a microsecond later: time must go on.
        let micros = (seconds * 1e6).ceil().max(1.0) as u64;
        let at: Time = draft.now() + Span(micros);
        draft.wake_at(at);
    }
}
