//! Options of a job, on the command line and in a script.

use crate::units;
use clap::Args;
use std::path::PathBuf;
use tandem_daemon::request::Param;

#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(crate) struct JobOptions {
    /// Name of the job [default: name of the script or program]
    #[arg(short = 'J', long = "job-name", visible_alias = "name", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Number of GPUs; a fraction is a share of one [default: 1]
    #[arg(short = 'G', long, value_name = "N", value_parser = units::gpus)]
    pub(crate) gpus: Option<f64>,
    /// Time limit on its GPUs: 90 is minutes, HH:MM:SS, 1-00:00:00, 1h30m
    #[arg(short = 't', long = "time", value_name = "TIME", value_parser = units::limit)]
    pub(crate) time: Option<f64>,
    /// Job array, one job per number: 0-9:2,14%3; %3 limits it to three running jobs
    #[arg(short = 'a', long, value_name = "LIST")]
    pub(crate) array: Option<String>,
    /// Jobs that must end first: afterok:1:2,afterany:3,afternotok:4; or start first: after:5
    #[arg(short = 'd', long, value_name = "LIST")]
    pub(crate) dependency: Option<String>,
    /// Earliest start: now+1h, HH:MM, 2026-12-24T18:00
    #[arg(short = 'b', long, value_name = "MOMENT", value_parser = units::moment)]
    pub(crate) begin: Option<f64>,
    /// File for standard output; %j is the job, %A the first job of its array, %a the task, %x the name [default: tandem-%j.out]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// File for standard error [default: that of standard output]
    #[arg(short = 'e', long, value_name = "FILE")]
    pub(crate) error: Option<PathBuf>,
    /// Working directory [default: the current one]
    #[arg(short = 'D', long, value_name = "DIR")]
    pub(crate) chdir: Option<PathBuf>,
    /// Partition; there is one on a single machine
    #[arg(short = 'p', long, value_name = "NAME")]
    pub(crate) partition: Option<String>,
    /// Memory it needs on each GPU, such as 20G [default: measured]
    #[arg(long, value_name = "SIZE", value_parser = units::memory)]
    pub(crate) gpu_memory: Option<u64>,
    /// Do not share its GPUs with other jobs
    #[arg(long)]
    pub(crate) exclusive: bool,
    /// Largest slow-down it accepts from sharing: 1.2 is 20 % longer
    #[arg(long, value_name = "FACTOR")]
    pub(crate) max_slowdown: Option<f64>,
    /// Number of retries after a failure
    #[arg(long, value_name = "N")]
    pub(crate) retries: Option<u32>,
    /// Requeue it after a reboot
    #[arg(long)]
    pub(crate) requeue: bool,
    /// One job per value: replaces {name} in the command and sets TANDEM_PARAM_NAME; several combine
    #[arg(long = "param", value_name = "NAME=A,B", value_parser = param)]
    pub(crate) params: Vec<Param>,
    /// Class of jobs that behave alike [default: from program, script and the arguments that matter]
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// Estimated run time when it runs alone
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(crate) estimate: Option<f64>,
    /// From -20 to 20; two steps double its weight
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i8>,
    /// Hold it until tandem release
    #[arg(short = 'H', long)]
    pub(crate) hold: bool,
    /// How its output shows progress, with a group for the steps: 'step (\d+)'
    #[arg(long, value_name = "REGEX")]
    pub(crate) progress_regex: Option<String>,
    /// Asked with a POST when the job is over: http://... or https://...
    #[arg(long, value_name = "URL")]
    pub(crate) webhook: Option<String>,
    /// Address that gets a mail when the job is over
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) mail_user: Option<String>,
    /// Account to charge [default: that of the user]
    #[arg(short = 'A', long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// Quality of service, as the administrator defines them
    #[arg(short = 'q', long, value_name = "NAME")]
    pub(crate) qos: Option<String>,
    /// Run in this reservation; see tandem reserve list
    #[arg(long, value_name = "N")]
    pub(crate) reservation: Option<u32>,
    /// Its environment: ALL, NONE, or names and NAME=VALUE, separated by commas [default: ALL]
    #[arg(long, value_name = "LIST")]
    pub(crate) export: Option<String>,
    /// It serves requests until it is cancelled, and is started again when it fails
    #[arg(long)]
    pub(crate) service: bool,
    /// Latency that a service is promised beside other jobs: p99=100ms or p50=20ms
    #[arg(long, value_name = "LATENCY")]
    pub(crate) slo: Option<String>,
    /// Requests per second that a service is to answer [default: measured]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) rate: Option<f64>,
    /// Part of each GPU that it is sure of beside other jobs: 0.1 to 1
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    pub(crate) share: Option<f64>,
    /// How the output of a service shows a latency, with a group for the milliseconds: 'took (\S+) ms'
    #[arg(long, value_name = "REGEX")]
    pub(crate) latency_regex: Option<String>,
    /// Time between the request to end and the end by force
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(crate) kill_grace: Option<f64>,
    /// Signal on which it saves a checkpoint and exits, such as USR1 or TERM: it can then be stopped, moved and requeued
    #[arg(long, value_name = "SIGNAL")]
    pub(crate) stop_signal: Option<String>,
}

impl JobOptions {
    /// These, and those of a script where these say nothing.
    pub(crate) fn over(self, script: JobOptions) -> JobOptions {
        let mut params = script.params;
        params.retain(|param| self.params.iter().all(|own| own.name != param.name));
        params.extend(self.params);
        JobOptions {
            name: self.name.or(script.name),
            gpus: self.gpus.or(script.gpus),
            time: self.time.or(script.time),
            array: self.array.or(script.array),
            dependency: self.dependency.or(script.dependency),
            begin: self.begin.or(script.begin),
            output: self.output.or(script.output),
            error: self.error.or(script.error),
            chdir: self.chdir.or(script.chdir),
            partition: self.partition.or(script.partition),
            gpu_memory: self.gpu_memory.or(script.gpu_memory),
            exclusive: self.exclusive || script.exclusive,
            max_slowdown: self.max_slowdown.or(script.max_slowdown),
            retries: self.retries.or(script.retries),
            requeue: self.requeue || script.requeue,
            params,
            class: self.class.or(script.class),
            estimate: self.estimate.or(script.estimate),
            priority: self.priority.or(script.priority),
            hold: self.hold || script.hold,
            progress_regex: self.progress_regex.or(script.progress_regex),
            webhook: self.webhook.or(script.webhook),
            mail_user: self.mail_user.or(script.mail_user),
            account: self.account.or(script.account),
            qos: self.qos.or(script.qos),
            reservation: self.reservation.or(script.reservation),
            export: self.export.or(script.export),
            kill_grace: self.kill_grace.or(script.kill_grace),
            stop_signal: self.stop_signal.or(script.stop_signal),
            service: self.service || script.service,
            slo: self.slo.or(script.slo),
            rate: self.rate.or(script.rate),
            share: self.share.or(script.share),
            latency_regex: self.latency_regex.or(script.latency_regex),
        }
    }
}

/// `lr=1,2`
fn param(text: &str) -> Result<Param, String> {
    let parts =
        text.split_once('=').filter(|(name, values)| !name.is_empty() && !values.is_empty());
    let (name, values) =
        parts.ok_or_else(|| format!("'{}' is not of the form NAME=A,B", text.escape_debug()))?;
    Ok(Param { name: name.to_owned(), values: values.split(',').map(str::to_owned).collect() })
}
