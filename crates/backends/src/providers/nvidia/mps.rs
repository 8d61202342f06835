//! NVIDIA's multi-process service: one control daemon per GPU, with folders of its own, started with the first
//! tenant. It outlives this process, as the tenants do.

use super::super::ProviderError;
use super::{MpsOptions, processes};
use crate::op::DeviceAllocation;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of a call of the control program.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of detaching clients.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two lists of clients.
const LIST_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two requests to terminate the same client.
const TERMINATE_AGAIN: Duration = Duration::from_millis(500);
/// A terminated client that is still listed after this time is ignored.
const STILL_LISTED: Duration = Duration::from_secs(1);
/// The longest path of a socket in bytes, with the final zero.
const SOCKET_PATH_MAX: usize = 108;
/// Variables that would change the limits of all clients of a control daemon.
const NOT_INHERITED: [&str; 5] = [
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
];

/// The control daemons of all GPUs.
#[derive(Debug)]
pub(super) struct Mps {
    controls: Vec<MpsControl>,
    /// Processes that are known to be our servers, by GPU.
    servers: Vec<BTreeSet<u32>>,
}

impl Mps {
    pub(super) fn new(options: &MpsOptions, gpus: &[&str]) -> Result<Mps, ProviderError> {
        // The first group of a UUID usually tells the GPUs of a machine apart, and keeps paths short.
        let short: Vec<&str> = gpus.iter().map(|gpu| first_group(gpu)).collect();
        let distinct = short.iter().collect::<BTreeSet<_>>().len() == short.len();
        let names = if distinct { &short[..] } else { gpus };
        let controls: Vec<MpsControl> = names
            .iter()
            .zip(gpus)
            .map(|(name, gpu)| MpsControl::new(&options.control, &options.dir.join(name), gpu))
            .collect::<Result<_, _>>()?;
        let servers = vec![BTreeSet::new(); controls.len()];
        Ok(Mps { controls, servers })
    }

    pub(super) fn control(&self, index: usize) -> Option<&MpsControl> {
        self.controls.get(index)
    }

    /// Removes our own servers from a list of processes. The control program is called only for processes
    /// that look like servers and are not known yet.
    pub(super) fn leave_out_servers(&mut self, index: usize, list: &mut Vec<(u32, u64)>) {
        let known = &mut self.servers[index];
        known.retain(|server| list.iter().any(|(pid, _)| pid == server));
        if list.iter().any(|(pid, _)| !known.contains(pid) && processes::is_mps(*pid))
            && let Ok(servers) = self.controls[index].servers()
        {
            known.extend(servers);
        }
        list.retain(|(pid, _)| !known.contains(pid));
    }

    pub(super) fn shutdown(&mut self) -> Vec<String> {
        self.controls.iter().filter_map(MpsControl::shutdown).collect()
    }
}

/// The control daemon of one GPU, which answers commands of the control program, one call each.
#[derive(Clone, Debug)]
pub struct MpsControl {
    program: PathBuf,
    gpu: String,
    folder: PathBuf,
    pipe: PathBuf,
}

impl MpsControl {
    /// The daemon of the GPU with this UUID, with its folders in `folder`. Nothing is started. A program name
    /// without a folder is searched in `PATH`.
    pub fn new(program: &Path, folder: &Path, gpu: &str) -> Result<MpsControl, ProviderError> {
        // The daemon and its clients have other working directories.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = absolute(folder);
        let named = program.components().count() == 1;
        let program = if named { program.to_owned() } else { absolute(program) };
        let pipe = folder.join("pipe");
        if pipe.join("control_privileged").as_os_str().len() >= SOCKET_PATH_MAX {
            return Err(ProviderError::Failed(format!(
                "{} is too long a path for the sockets of MPS: choose another folder",
                folder.display()
            )));
        }
        Ok(MpsControl { program, gpu: gpu.to_owned(), folder, pipe })
    }

    /// The `CUDA_MPS_PIPE_DIRECTORY` of its clients.
    pub fn pipe(&self) -> &Path {
        &self.pipe
    }

    /// Sends a command and returns its output. [`ProviderError::Absent`] if there is no daemon.
    pub fn ask(&self, command: &str) -> Result<String, ProviderError> {
        // The socket stays when the daemon ends, so only its absence shows that there is no daemon.
        if !self.pipe.join("control").exists() {
            return Err(ProviderError::Absent(format!("no MPS control daemon for {}", self.gpu)));
        }
        let (success, output) = self.call(&[], &format!("{command}\n"))?;
        if success {
            return Ok(output);
        }
        Err(ProviderError::Absent(format!(
            "the MPS control daemon for {} does not answer: {}",
            self.gpu,
            last_line(&output)
        )))
    }

    /// Starts the daemon unless it runs.
    pub fn start(&self) -> Result<(), ProviderError> {
        match self.ask("get_server_list") {
            Ok(_) => Ok(()),
            Err(ProviderError::Absent(_)) => self.launch(),
            Err(error) => Err(error),
        }
    }

    fn launch(&self) -> Result<(), ProviderError> {
        self.make_folders().map_err(|error| {
            ProviderError::Failed(format!(
                "cannot create the folders of MPS in {}: {error}",
                self.folder.display()
            ))
        })?;
        let (success, output) = self.call(&["-d"], "")?;
        match self.ask("get_server_list") {
            Ok(_) if success => Ok(()),
            // Another process started it first and owns it.
            Ok(_) => {
                let _ = fs::remove_file(self.mark());
                Ok(())
            }
            Err(error) => {
                let cause = if success { error.to_string() } else { last_line(&output) };
                Err(ProviderError::Failed(format!(
                    "MPS cannot be started for {}: {cause}",
                    self.gpu
                )))
            }
        }
    }

    /// The servers. There is none before the first client.
    pub fn servers(&self) -> Result<Vec<u32>, ProviderError> {
        Ok(numbers(&self.ask("get_server_list")?))
    }

    /// The clients of a server.
    pub fn clients(&self, server: u32) -> Result<Vec<u32>, ProviderError> {
        Ok(numbers(&self.ask(&format!("get_client_list {server}"))?))
    }

    /// Starts the daemon unless it runs. An error if it has clients of another user.
    pub(super) fn admit(&self, uid: u32) -> Result<(), ProviderError> {
        let servers = match self.servers() {
            Err(ProviderError::Absent(_)) => {
                self.launch()?;
                Vec::new()
            }
            servers => servers?,
        };
        for server in servers {
            let Some(owner) = processes::owner(server) else { continue };
            if owner != uid && !self.clients(server)?.is_empty() {
                return Err(self.taken(owner, uid));
            }
        }
        // Tenants that have not connected yet. Those of root are supervisors of other users' jobs.
        match processes::tenants(&self.pipe)
            .into_iter()
            .find(|(_, owner)| *owner != uid && *owner != 0)
        {
            Some((_, owner)) => Err(self.taken(owner, uid)),
            None => Ok(()),
        }
    }

    fn taken(&self, owner: u32, uid: u32) -> ProviderError {
        ProviderError::Failed(format!(
            "user {uid} cannot share {} with user {owner}: MPS serves one user at a time",
            self.gpu
        ))
    }

    /// The environment of a tenant, which is read when it starts and holds for its life.
    pub(super) fn tenant(&self, allocation: &DeviceAllocation) -> Vec<(String, String)> {
        let mut env = vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), self.pipe.display().to_string())];
        let percent = ((u64::from(allocation.share_ppm) + 5_000) / 10_000).max(1);
        if percent < 100 {
            env.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), percent.to_string()));
        }
        if allocation.memory_bytes > 0 {
            let mebibytes = allocation.memory_bytes.div_ceil(1 << 20);
            env.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), format!("0={mebibytes}M")));
        }
        env
    }

    /// Terminates these clients. Returns when each of them is no longer listed, or [`STILL_LISTED`] after the
    /// control daemon answered 0, which means success.
    pub(super) fn detach(&self, pids: &[u32]) -> Result<(), ProviderError> {
        let wanted: BTreeSet<u32> = pids.iter().copied().collect();
        let begin = Instant::now();
        let mut asked: Vec<TerminateRequest> = Vec::new();
        loop {
            let left = match self.clients_among(&wanted) {
                Ok(left) => left,
                // Without a daemon there are no clients.
                Err(ProviderError::Absent(_)) => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut waiting = false;
            for (server, client) in &left {
                let place = asked.iter().position(|request| request.client == *client);
                let known = place.map(|place| &asked[place]);
                if known.is_some_and(|request| request.done && request.at.elapsed() >= STILL_LISTED)
                {
                    continue;
                }
                waiting = true;
                if known
                    .is_some_and(|request| request.done || request.at.elapsed() < TERMINATE_AGAIN)
                {
                    continue;
                }
                let answer = match self.ask(&format!("terminate_client {server} {client}")) {
                    Err(ProviderError::Absent(_)) => return Ok(()),
                    answer => answer?,
                };
                // The last line is the result; an explanation may precede it.
                let done = answer.lines().last().map(str::trim) == Some("0");
                let request = TerminateRequest { client: *client, done, at: Instant::now() };
                match place {
                    Some(place) => asked[place] = request,
                    None => asked.push(request),
                }
            }
            if !waiting {
                return Ok(());
            }
            if begin.elapsed() >= DETACH_TIMEOUT {
                let list: Vec<String> = left.iter().map(|(_, client)| client.to_string()).collect();
                return Err(ProviderError::Failed(format!(
                    "MPS did not end its clients {} on {} within {} s",
                    list.join(", "),
                    self.gpu,
                    DETACH_TIMEOUT.as_secs()
                )));
            }
            sleep(LIST_INTERVAL);
        }
    }

    /// Those of these clients that are listed, with their servers.
    fn clients_among(&self, wanted: &BTreeSet<u32>) -> Result<Vec<(u32, u32)>, ProviderError> {
        let mut found = Vec::new();
        for server in self.servers()? {
            let clients = self.clients(server)?;
            found.extend(
                clients
                    .into_iter()
                    .filter(|client| wanted.contains(client))
                    .map(|client| (server, client)),
            );
        }
        Ok(found)
    }

    /// Ends the daemon if it is ours and has no clients; otherwise a line that says why it stays.
    fn shutdown(&self) -> Option<String> {
        if !self.mark().exists() {
            return None;
        }
        let stays =
            |cause: &str| Some(format!("the MPS control daemon for {} stays: {cause}", self.gpu));
        let servers = match self.servers() {
            Ok(servers) => servers,
            Err(ProviderError::Absent(_)) => {
                let _ = fs::remove_file(self.mark());
                return None;
            }
            Err(error) => return stays(&error.to_string()),
        };
        for server in servers {
            match self.clients(server) {
                Ok(clients) if clients.is_empty() => {}
                Ok(clients) => return stays(&format!("it has {} clients", clients.len())),
                Err(error) => return stays(&error.to_string()),
            }
        }
        if let Some((pid, _)) = processes::tenants(&self.pipe).first() {
            return stays(&format!("process {pid} may still connect to it"));
        }
        if let Err(error @ ProviderError::Failed(_)) = self.ask("quit") {
            return stays(&error.to_string());
        }
        let _ = fs::remove_file(self.mark());
        None
    }

    /// The file that marks the daemon as ours.
    fn mark(&self) -> PathBuf {
        self.folder.join("started")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn make_folders(&self) -> io::Result<()> {
        fs::create_dir_all(&self.pipe)?;
        fs::create_dir_all(self.log())?;
        if rustix::process::geteuid().is_root() {
            // Servers and clients are processes of other users.
            fs::set_permissions(&self.folder, Permissions::from_mode(0o755))?;
            fs::set_permissions(&self.pipe, Permissions::from_mode(0o1777))?;
        }
        fs::write(self.mark(), "")
    }

    /// Runs the control program; whether it succeeded, and its output.
    fn call(&self, arguments: &[&str], input: &str) -> Result<(bool, String), ProviderError> {
        let failed = |cause: &dyn std::fmt::Display| {
            ProviderError::Failed(format!("{} cannot be used: {cause}", self.program.display()))
        };
        let mut command = Command::new(&self.program);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", self.log())
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .env("CUDA_VISIBLE_DEVICES", &self.gpu);
        let answer = crate::program::run_program(&mut command, input, CALL_TIMEOUT)
            .map_err(|error| failed(&error))?;
        let answer = answer.ok_or_else(|| {
            let command_line = command_line(arguments, input);
            failed(&format_args!(
                "no answer to '{command_line}' within {} s",
                CALL_TIMEOUT.as_secs()
            ))
        })?;
        let text = [answer.stdout, answer.stderr].concat();
        Ok((answer.succeeded, String::from_utf8_lossy(&text).into_owned()))
    }
}

/// A request to terminate a client.
struct TerminateRequest {
    client: u32,
    /// The answer was 0.
    done: bool,
    at: Instant,
}

/// `GPU-1a2b3c4d` of `GPU-1a2b3c4d-…`.
fn first_group(uuid: &str) -> &str {
    uuid.match_indices('-').nth(1).map_or(uuid, |(end, _)| &uuid[..end])
}

fn command_line(arguments: &[&str], input: &str) -> String {
    if input.is_empty() { arguments.join(" ") } else { input.trim().to_owned() }
}

/// The last line of an output.
fn last_line(output: &str) -> String {
    output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no message").to_owned()
}

/// The numbers of lines that contain only numbers, unlike messages such as `Server 7 not found`.
fn numbers(output: &str) -> Vec<u32> {
    output
        .lines()
        .filter_map(|line| {
            line.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>().ok()
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_numbers_are_read() {
        assert!(numbers("").is_empty());
        assert_eq!(numbers("4711\n 4712 \n\n"), [4711, 4712]);
        assert_eq!(numbers("4711 4712\r\n"), [4711, 4712]);
        assert!(numbers("Server 4711 not found\n").is_empty());
        assert!(numbers("-1\n99999999999\n").is_empty());
    }

    #[test]
    fn folders_are_short_unless_gpus_would_share_one() {
        let options = MpsOptions { control: "control".into(), dir: "/run/tandem".into() };
        let pipes = |gpus: &[&str]| {
            let mps = Mps::new(&options, gpus).unwrap();
            mps.controls
                .iter()
                .map(|control| control.pipe().display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            pipes(&["GPU-1-2-3", "GPU-2-2-3"]),
            ["/run/tandem/GPU-1/pipe", "/run/tandem/GPU-2/pipe"]
        );
        assert_eq!(
            pipes(&["GPU-1-2-3", "GPU-1-2-4"]),
            ["/run/tandem/GPU-1-2-3/pipe", "/run/tandem/GPU-1-2-4/pipe"]
        );
    }

    #[test]
    fn a_folder_with_too_long_a_path_is_rejected() {
        let options = |length| MpsOptions {
            control: "control".into(),
            dir: Path::new("/").join("x".repeat(length)),
        };
        let gpu = "GPU-11111111-2222-3333-4444-555555555555";
        Mps::new(&options(69), &[gpu]).unwrap();
        let error = Mps::new(&options(70), &[gpu]).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
