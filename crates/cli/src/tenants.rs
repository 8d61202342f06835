//! Tenants and GPUs as they are given on the command line.

use crate::failure::Failure;
use std::fmt::Display;
use std::path::Path;
use tandem_core::Memory;
use tandem_models::device::{BATCH_MAX, DeviceGpu, DeviceTenant, Requests};
use tandem_sim::profiles::{batch_in_name, read_operators};

/// Upper limit of latencies and gaps: an hour.
const US_MAX: f64 = 3.6e9;

/// An item of a list and the `key=value` items that belong to it.
#[derive(Debug, PartialEq)]
struct ListItem<'a> {
    head: &'a str,
    options: Vec<(&'a str, &'a str)>,
}

/// Parses `HEAD[:key=value,...],HEAD...`.
fn items<'a>(text: &'a str, what: &str) -> Result<Vec<ListItem<'a>>, Failure> {
    let mut items: Vec<ListItem<'a>> = Vec::new();
    for part in text.split(',').map(str::trim) {
        // A colon may be part of a path; only an option after it makes it the end of one.
        let (head, option) = match part.rsplit_once(':') {
            Some((head, option)) if option.contains('=') => (Some(head), Some(option)),
            _ if part.contains('=') => (None, Some(part)),
            _ => (Some(part), None),
        };
        match head {
            Some("") => {
                let problem = format!(
                    "{what} '{text}': an item is empty; give a name before ':' and between commas"
                );
                return Err(Failure::bad_input(problem));
            }
            Some(head) => items.push(ListItem { head, options: Vec::new() }),
            None => {}
        }
        let Some(option) = option else { continue };
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let Some(item) = items.last_mut() else {
            let problem = format!("{what} '{text}': {key}= stands before the first name");
            return Err(Failure::bad_input(problem));
        };
        if item.options.iter().any(|(known, _)| *known == key) {
            let problem = format!("{what} {}: {key} is given twice", item.head);
            return Err(Failure::bad_input(problem));
        }
        item.options.push((key, value));
    }
    Ok(items)
}

/// One option of an item, and how to refuse it.
struct ItemOption<'a> {
    of: &'a str,
    key: &'a str,
    value: &'a str,
}

impl ItemOption<'_> {
    fn refuse(&self, needs: impl Display) -> Failure {
        let Self { of, key, value } = self;
        Failure::bad_input(format!("{of}: {key}: needs {needs}, not '{value}'"))
    }

    fn number(&self, low: f64, high: f64) -> Result<f64, Failure> {
        let number = self.value.parse::<f64>().ok().filter(|value| (low..=high).contains(value));
        number.ok_or_else(|| self.refuse(format!("a number from {low} to {high}")))
    }

    fn positive(&self, high: f64) -> Result<f64, Failure> {
        let number = self.value.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= high);
        number.ok_or_else(|| self.refuse(format!("a number above 0 and at most {high}")))
    }

    fn whole(&self, high: u32) -> Result<u32, Failure> {
        let number = self.value.parse::<u32>().ok().filter(|value| (1..=high).contains(value));
        number.ok_or_else(|| self.refuse(format!("a whole number from 1 to {high}")))
    }

    /// MiB, or with a letter.
    fn memory(&self) -> Result<Memory, Failure> {
        let text = self.value.trim_end_matches(['b', 'B']).trim_end_matches('i');
        let (digits, mib) = match text.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&text[..at], 1.0 / 1024.0),
            Some((at, 'm' | 'M')) => (&text[..at], 1.0),
            Some((at, 'g' | 'G')) => (&text[..at], 1024.0),
            Some((at, 't' | 'T')) => (&text[..at], 1024.0 * 1024.0),
            _ => (text, 1.0),
        };
        let mib = digits.parse::<f64>().ok().map(|number| number * mib);
        let mib = mib.filter(|mib| (0.0..=1e12).contains(mib));
        let mib = mib.ok_or_else(|| self.refuse("a size such as 4G, 512M or a number of MiB"))?;
        Ok(Memory((mib * 1000.0).ceil() as u64))
    }
}

/// Reads `NAME[:key=value,...]`.
pub(crate) fn gpu(text: &str) -> Result<DeviceGpu, Failure> {
    let items = items(text, "--gpu")?;
    let [ListItem { head, options }] = items.as_slice() else {
        return Err(Failure::bad_input(format!("--gpu '{text}': name one GPU")));
    };
    let mut gpu = DeviceGpu::known(head)?;
    for &(key, value) in options {
        let setting = ItemOption { of: &format!("GPU {head}"), key, value };
        let constants = &mut gpu.constants;
        match key {
            "sms" => gpu = gpu.with_sms(setting.whole(u32::MAX)?)?,
            "mem" => gpu.memory = setting.memory()?,
            "context" => gpu.context = setting.memory()?,
            "beta_compute" => constants.beta_compute = setting.number(0.0, 1.0)?,
            "beta_memory" => constants.beta_memory = setting.number(0.0, 1.0)?,
            "beta_unknown" => constants.beta_unknown = setting.number(0.0, 1.0)?,
            "sigma" => constants.sigma = setting.positive(1.0)?,
            "kappa" => constants.kappa = setting.number(0.0, 10.0)?,
            _ => {
                let known =
                    "sms, mem, context, beta_compute, beta_memory, beta_unknown, sigma, kappa";
                let problem = format!("GPU {head}: unknown key '{key}'; known are {known}");
                return Err(Failure::bad_input(problem));
            }
        }
    }
    Ok(gpu)
}

/// Reads `FILE[:key=value,...],FILE...`.
pub(crate) fn tenants(text: &str, gpu: &DeviceGpu) -> Result<Vec<DeviceTenant>, Failure> {
    let mut tenants: Vec<DeviceTenant> = Vec::new();
    for item in items(text, "--tenants")? {
        let mut tenant = tenant(&item, gpu)?;
        let is_named = item.options.iter().any(|(key, _)| *key == "name");
        let taken = |name: &str| tenants.iter().any(|other| other.name == name);
        if is_named && taken(&tenant.name) {
            let problem = format!("tenant {}: another one has this name", tenant.name);
            return Err(Failure::bad_input(problem));
        }
        // The same file may stand for several tenants.
        let name = tenant.name.clone();
        let mut copy = 2;
        while taken(&tenant.name) {
            tenant.name = format!("{name}#{copy}");
            copy += 1;
        }
        tenants.push(tenant);
    }
    Ok(tenants)
}

fn tenant(item: &ListItem<'_>, gpu: &DeviceGpu) -> Result<DeviceTenant, Failure> {
    let file = item.head;
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    let mut tenant = DeviceTenant::new(&name, read_operators(file)?)?;
    let (mut batch, mut base) = (None, batch_in_name(file));
    let (mut arrivals, mut p99_ns) = (None, None);
    for &(key, value) in &item.options {
        let setting = ItemOption { of: file, key, value };
        match key {
            "batch" => batch = Some(setting.whole(BATCH_MAX)?),
            "base" => base = Some(setting.whole(BATCH_MAX)?),
            "h" => tenant.launch_ns = setting.number(0.0, US_MAX)? * 1e3,
            "H" => tenant.host_ns = setting.number(0.0, US_MAX)? * 1e3,
            "mem" => tenant.memory = setting.memory()?,
            "slo" => tenant.floor = setting.number(0.0, 1.0)?,
            "weight" => tenant.weight = setting.positive(1e6)?,
            "arrivals" => arrivals = Some(setting.number(0.1, 1e6)?),
            "p99" => p99_ns = Some(setting.positive(US_MAX / 1e3)? * 1e6),
            "name" => value.clone_into(&mut tenant.name),
            _ => {
                let known = "batch, base, h, H, mem, slo, weight, arrivals, p99, name";
                let problem = format!("{file}: unknown key '{key}'; known are {known}");
                return Err(Failure::bad_input(problem));
            }
        }
    }
    if let Some(batch) = batch {
        let base = base.ok_or_else(|| {
            let problem = "its name does not tell the batch size of the trace; add base=N";
            Failure::bad_input(format!("{file}: batch: {problem}"))
        })?;
        tenant = tenant.rescaled(base, batch, gpu)?;
    }
    tenant.requests = match (arrivals, p99_ns) {
        (Some(per_second), p99_ns) => Some(Requests { per_second, p99_ns }),
        // A sweep sets the rate later.
        (None, Some(p99_ns)) => Some(Requests { per_second: 0.0, p99_ns: Some(p99_ns) }),
        (None, None) => None,
    };
    Ok(tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_the_name_before_them() {
        let found = items("a/b:c:batch=32,h=28,d,e:slo=0.5", "--tenants").unwrap();
        let item = |head, options: &[(&'static str, &'static str)]| ListItem {
            head,
            options: options.to_vec(),
        };
        let expected = [
            item("a/b:c", &[("batch", "32"), ("h", "28")]),
            item("d", &[]),
            item("e", &[("slo", "0.5")]),
        ];
        assert_eq!(found, expected);
        for bad in ["", "a,,b", "batch=3", ":batch=3", "a:h=1,h=2"] {
            assert!(items(bad, "--tenants").is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_in_binary_units() {
        let memory =
            |value| ItemOption { of: "f", key: "mem", value }.memory().map(|memory| memory.0);
        let mib = |value| memory(value).unwrap();
        assert_eq!(
            ["4G", "4GiB", "512M", "512", "0"].map(mib),
            [4_096_000, 4_096_000, 512_000, 512_000, 0]
        );
        for bad in ["", "G", "-1", "nan", "1e300", "4X", "ä"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
    }
}
