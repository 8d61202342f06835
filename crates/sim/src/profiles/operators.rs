//! Operator traces in Orion's columns: one kernel per line, with its class, its SMs and its duration in
//! nanoseconds. Rows are read from the right, because kernel names may contain commas.

use crate::interference::TableError;
use crate::sheet::{error, read_bytes};
use tandem_models::device::{NS_MAX, Operator, OperatorKind, SMS_WANTED_MAX};

const NAME: &str = "Name";
const PROFILE: &str = "Profile";
const FOOTPRINT: &str = "Memory_footprint";
const SMS: &str = "SM_usage";
const DURATION: &str = "Duration";
/// The columns to the right of the name.
const COLUMNS: [&str; 4] = [PROFILE, FOOTPRINT, SMS, DURATION];

/// Reads the operators of one iteration, in order.
pub fn read_operators(file: &str) -> Result<Vec<Operator>, TableError> {
    parse(&read_bytes(file)?, file)
}

/// The batch size in a file name such as `resnet50_4_fwd`: its second-to-last part.
pub fn batch_in_name(file: &str) -> Option<u32> {
    let name = std::path::Path::new(file).file_stem()?.to_str()?;
    name.rsplit('_').nth(1)?.parse().ok().filter(|batch| *batch > 0)
}

pub(super) fn parse(bytes: &[u8], file: &str) -> Result<Vec<Operator>, TableError> {
    let mut lines = bytes.split(|&byte| byte == b'\n').zip(1_u64..).map(|(line, number)| {
        let text = std::str::from_utf8(line);
        let text = text.map_err(|_| error(file, number, "row", "not UTF-8 text".to_owned()));
        text.map(|text| (text.trim_end_matches('\r'), number))
    });
    let header = lines.next().transpose()?.map_or("", |(text, _)| text);
    let order = header_order(header, file)?;
    let mut operators = Vec::new();
    for line in lines {
        let (text, number) = line?;
        if !text.trim().is_empty() {
            operators.push(OperatorLine { text, number, file }.operator(order)?);
        }
    }
    if operators.is_empty() {
        return Err(error(file, 2, "row", "there are no operators".to_owned()));
    }
    Ok(operators)
}

/// The position of each known column from the right.
fn header_order(header: &str, file: &str) -> Result<[usize; 4], TableError> {
    let wrong = |field: &str, problem: &str| error(file, 1, field, problem.to_owned());
    if header.trim().is_empty() {
        return Err(wrong("header", "the file is empty"));
    }
    let columns: Vec<&str> = header.split(',').map(str::trim).collect();
    for (index, column) in columns.iter().enumerate() {
        if *column != NAME && !COLUMNS.contains(column) {
            return Err(wrong(column, "unknown column"));
        }
        if columns[..index].contains(column) {
            return Err(wrong(column, "this column is there twice"));
        }
    }
    let missing = [NAME].iter().chain(&COLUMNS).find(|column| !columns.contains(column));
    if let Some(column) = missing {
        return Err(wrong(column, "missing column"));
    }
    if columns[0] != NAME {
        return Err(wrong(NAME, "has to be the first column, because names may hold commas"));
    }
    let from_right = |column: &str| {
        let right = columns.iter().rev().position(|found| *found == column);
        right.expect("no column is missing")
    };
    Ok(COLUMNS.map(from_right))
}

struct OperatorLine<'a> {
    text: &'a str,
    number: u64,
    file: &'a str,
}

impl OperatorLine<'_> {
    fn operator(&self, order: [usize; 4]) -> Result<Operator, TableError> {
        let fields: Vec<&str> = self.text.rsplitn(COLUMNS.len() + 1, ',').map(str::trim).collect();
        if fields.len() != COLUMNS.len() + 1 {
            let problem = format!("{} fields, at least {} are needed", fields.len(), 5);
            return Err(error(self.file, self.number, "row", problem));
        }
        let [profile, footprint, sms, duration] = order.map(|index| fields[index]);
        let kind = match profile {
            "1" => OperatorKind::Compute,
            "0" => OperatorKind::Memory,
            "-1" => OperatorKind::Unknown,
            _ => return Err(self.bad(PROFILE, profile, "neither 1 (compute), 0 (memory) nor -1")),
        };
        // Not used, but it reveals files with shifted columns.
        self.number(FOOTPRINT, footprint).and_then(|value| match value >= 0.0 {
            true => Ok(()),
            false => Err(self.bad(FOOTPRINT, footprint, "negative")),
        })?;
        let sms = self.within(SMS, sms, SMS_WANTED_MAX, "beyond 10⁹")?;
        let duration_ns = self.within(DURATION, duration, NS_MAX, "more than an hour")?;
        Ok(Operator { duration_ns, sms, kind })
    }

    fn number(&self, field: &str, text: &str) -> Result<f64, TableError> {
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        value.ok_or_else(|| self.bad(field, text, "not a number"))
    }

    /// A number above zero and at most `max`.
    fn within(&self, field: &str, text: &str, max: f64, beyond: &str) -> Result<f64, TableError> {
        let value = self.number(field, text)?;
        if value <= 0.0 {
            return Err(self.bad(field, text, "has to be above zero"));
        }
        if value > max {
            return Err(self.bad(field, text, beyond));
        }
        Ok(value)
    }

    fn bad(&self, field: &str, text: &str, problem: &str) -> TableError {
        error(self.file, self.number, field, format!("{problem}: '{text}'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Name,Profile,Memory_footprint,SM_usage,Duration\n";

    #[test]
    fn rows_are_read_from_the_right() {
        let text = format!("{HEADER}void f<int, 4>(a),1,0,98,100480\r\n\r\nBatchNorm,0,0,2.5,40\n");
        let operators = parse(text.as_bytes(), "t").unwrap();
        let expected = [
            Operator { duration_ns: 100_480.0, sms: 98.0, kind: OperatorKind::Compute },
            Operator { duration_ns: 40.0, sms: 2.5, kind: OperatorKind::Memory },
        ];
        assert_eq!(operators, expected);
        let turned = "Name,Duration,SM_usage,Profile,Memory_footprint\nf,40,2.5,0,0";
        assert_eq!(parse(turned.as_bytes(), "t").unwrap(), expected[1..]);
    }

    #[test]
    fn errors_name_line_and_field() {
        let error = |text: &str| parse(text.as_bytes(), "t").unwrap_err().to_string();
        let row = |row: &str| error(&format!("{HEADER}ok,1,0,1,1\n{row}\n"));
        assert_eq!(error(""), "t:1: header: the file is empty");
        assert_eq!(error(HEADER), "t:2: row: there are no operators");
        assert_eq!(
            error("Name,Profile,Duration,SM_usage\n"),
            "t:1: Memory_footprint: missing column"
        );
        assert_eq!(error(&HEADER.replace("SM_usage", "Usage")), "t:1: Usage: unknown column");
        assert_eq!(row("f,2,0,1,1"), "t:3: Profile: neither 1 (compute), 0 (memory) nor -1: '2'");
        assert_eq!(row("f,1,0,1,0"), "t:3: Duration: has to be above zero: '0'");
        assert_eq!(row("f,1,0,1,-5"), "t:3: Duration: has to be above zero: '-5'");
        assert_eq!(row("f,1,0,1,NaN"), "t:3: Duration: not a number: 'NaN'");
        assert_eq!(row("f,1,0,1,1e300"), "t:3: Duration: more than an hour: '1e300'");
        assert_eq!(row("f,1,0,0,1"), "t:3: SM_usage: has to be above zero: '0'");
        assert_eq!(row("f,1,x,1,1"), "t:3: Memory_footprint: not a number: 'x'");
        assert_eq!(row("f,1,1"), "t:3: row: 3 fields, at least 5 are needed");
    }

    #[test]
    fn the_batch_size_is_read_from_the_name() {
        assert_eq!(batch_in_name("a_b/resnet50_4_fwd"), Some(4));
        assert_eq!(batch_in_name("transformer_xl_16_fb1.csv"), Some(16));
        assert_eq!(batch_in_name("trace.csv"), None);
        assert_eq!(batch_in_name("net_0_fwd"), None);
    }
}
