//! Arrays and sweeps become tasks, and bad requests name the field.

use super::*;

fn request() -> JobRequest {
    JobRequest { command: vec!["true".to_owned()], ..JobRequest::default() }
}

#[test]
fn arrays_and_parameters_become_tasks() {
    let array = |text: &str| {
        let request = JobRequest { array: Some(text.to_owned()), ..request() };
        request.tasks().map(|tasks| {
            let numbers: Vec<u32> =
                (0..tasks.count()).filter_map(|index| tasks.number(index)).collect();
            (numbers, tasks.at_a_time)
        })
    };
    assert_eq!(array("0-6:2,14%3").unwrap(), (vec![0, 2, 4, 6, 14], Some(3)));
    assert_eq!(array("7").unwrap(), (vec![7], None));
    for wrong in ["", "a", "1-", "1%", "1%x", "1,,2", "+1"] {
        let problem = array(wrong).unwrap_err().problem;
        assert_eq!(problem, format!("'{wrong}' is not of the form 0-9:2,14%3"));
    }
    let precise = [
        ("9-0", "ends before it begins"),
        ("0-9:0", "has a step of 0; give 1 or more"),
        ("0-9%0", "lets no task run; give 1 or more after %"),
        ("0-4294967295", "has more than 100000 numbers"),
        ("4294967296", "has a number above 4294967295"),
    ];
    for (wrong, expected) in precise {
        let problem = array(wrong).unwrap_err().problem;
        assert!(problem.contains(expected), "{wrong}: {problem}");
    }
    let param = |name: &str, values: &[&str]| Param {
        name: name.to_owned(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    let sweep = JobRequest {
        params: vec![param("lr", &["1", "2"]), param("wd", &["a", "b", "c"])],
        ..request()
    };
    let tasks = sweep.tasks().unwrap();
    assert_eq!((tasks.count(), tasks.number(5)), (6, Some(5)));
    assert_eq!(sweep.chosen(0), [("lr", "1"), ("wd", "a")]);
    assert_eq!(sweep.chosen(4), [("lr", "2"), ("wd", "b")]);
    // With an array every number has every combination.
    let both = JobRequest { array: Some("7,9".to_owned()), ..sweep };
    let tasks = both.tasks().unwrap();
    assert_eq!((tasks.count(), tasks.number(5), tasks.number(6)), (12, Some(7), Some(9)));
    assert_eq!(both.chosen(6 + 4), both.chosen(4));
    assert_eq!(
        (request().tasks().unwrap().count(), request().tasks().unwrap().number(0)),
        (1, None)
    );
}

#[test]
fn bad_requests_name_the_field() {
    let field = |change: fn(&mut JobRequest)| {
        let mut request = request();
        change(&mut request);
        request.check().unwrap_err().field
    };
    assert_eq!(field(|request| request.command.clear()), "command");
    assert_eq!(field(|request| request.command.push("a\0b".to_owned())), "command");
    assert_eq!(field(|request| request.params = vec![nul()]), "params");
    assert_eq!(field(|request| request.gpus = 1.5), "gpus");
    assert_eq!(field(|request| request.gpus = f64::NAN), "gpus");
    assert_eq!(field(|request| request.time_limit_s = Some(-1.0)), "time_limit_s");
    assert_eq!(field(|request| request.name = Some("a\nb".to_owned())), "name");
    assert_eq!(field(|request| request.progress_regex = Some("step".to_owned())), "progress_regex");
    assert_eq!(field(|request| request.dependency = Some("afterok".to_owned())), "dependency");
    assert_eq!(field(|request| request.max_slowdown = Some(0.5)), "max_slowdown");
    assert_eq!(field(|request| drop(request.env.insert("A=B".to_owned(), String::new()))), "env");
    assert_eq!(request().check(), Ok(()));
}

#[test]
fn small_requests_do_not_become_large_work() {
    let param = |name: &str, value: &str, count: usize| Param {
        name: name.to_owned(),
        values: vec![value.to_owned(); count],
    };
    let field = |request: JobRequest| request.check().unwrap_err().field;
    // More than the environment of a task can hold.
    let long = "x".repeat(1 << 20);
    let params = vec![param("a", &long, 1), param("b", "1", 100_000)];
    assert_eq!(field(JobRequest { params, ..request() }), "params");
    // 330 parameters for each of 100,000 tasks.
    let params = vec![param("a", "", 1); 330];
    let array = Some("0-99999".to_owned());
    assert_eq!(field(JobRequest { params, array, ..request() }), "params");
    // It would outlast the time limit and the command to cancel.
    assert_eq!(field(JobRequest { kill_grace_s: Some(1e10), ..request() }), "kill_grace_s");
    // A mebibyte for each of 100,000 places.
    let command = vec!["true".to_owned(), "{a}".repeat(100_000)];
    let params = vec![param("a", &long, 1)];
    assert_eq!(field(JobRequest { command, params, ..request() }), "params");
    let array = Some("0-99999,".repeat(50_000) + "1");
    assert_eq!(field(JobRequest { array, ..request() }), "array");
    let (array, dependency) =
        (Some("0-99999".to_owned()), Some("afterok:1".to_owned() + &":1".repeat(9_998) + ":2"));
    assert_eq!(
        field(JobRequest { dependency: dependency.clone(), ..request() }.with_array(array)),
        "dependency"
    );
    let once = JobRequest { dependency, ..request() };
    assert_eq!(once.check(), Ok(()));
    let progress_regex = Some("((a{50}){50}){50}".to_owned());
    assert_eq!(field(JobRequest { progress_regex, ..request() }), "progress_regex");
    let stdout = Some("%x".repeat(5_000).into());
    assert_eq!(field(JobRequest { stdout, ..request() }), "stdout");
    assert_eq!(field(JobRequest { dir: "/a\0b".into(), ..request() }), "dir");
    let command = vec![format!("/bin/{long}")];
    assert!(JobRequest { command, ..request() }.display_name().len() < 256);
}

#[test]
fn many_empty_arguments_and_values_are_checked_quickly() {
    let values = vec![String::new(); 99_999];
    let params = vec![Param { name: "a".to_owned(), values }];
    let command = [vec!["true".to_owned()], vec![String::new(); 65_535]].concat();
    let began = std::time::Instant::now();
    assert_eq!(JobRequest { command, params, ..request() }.check(), Ok(()));
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    let command = vec!["x".repeat(20); 60_000];
    let refusal = JobRequest { command, ..request() }.check().expect_err("too long");
    assert_eq!(refusal.field, "command");
}

#[test]
fn problems_with_numbers_are_short_and_say_what_is_wrong() {
    let problem = |request: JobRequest| request.check().unwrap_err().problem;
    assert_eq!(
        problem(JobRequest { gpus: 1e300, ..request() }),
        "is 1e300; give 0.1 to 1, or a whole number"
    );
    let long = JobRequest { time_limit_s: Some(1e300), ..request() };
    assert_eq!(problem(long), "is 1e300 seconds; give at most 1e10");
    // 9999-12-31.
    let begin = JobRequest { begin_unix_s: Some(253_402_214_400.0), ..request() };
    assert_eq!(problem(begin), "is later than the year 2286; give an earlier moment");
    assert!(problem(JobRequest { share: Some(1e300), ..request() }).len() < 100);
}

fn nul() -> Param {
    Param { name: "a".to_owned(), values: vec!["b\0c".to_owned()] }
}

impl JobRequest {
    fn with_array(self, array: Option<String>) -> Self {
        Self { array, ..self }
    }
}

/// Each of a million short texts takes more than fifty times the memory of the byte that brings it.
#[test]
fn long_lists_are_not_read_to_their_end() {
    let refused = |text: &str| {
        let refusal = serde_json::from_str::<JobRequest>(text).expect_err("too many");
        let (message, column) = (refusal.to_string(), refusal.column());
        assert!(column < text.len() / 2, "{message}");
        message
    };
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let message = refused(&format!(r#"{{"command":[{}]}}"#, list(r#""x""#, 200_000)));
    assert!(
        message.starts_with("too many arguments (at most 65536; put longer lists into a file)"),
        "{message}"
    );
    let variables: Vec<String> = (0..200_000).map(|n| format!(r#""A{n}":"""#)).collect();
    let message = refused(&format!(r#"{{"env":{{{}}}}}"#, variables.join(",")));
    assert!(message.starts_with("too many environment variables"), "{message}");
    let values = list(r#""""#, 300_000);
    let message = refused(&format!(r#"{{"params":[{{"name":"a","values":[{values}]}}]}}"#));
    assert!(message.starts_with("too many values of a parameter (at most 100000;"), "{message}");
    let params = list(r#"{"name":"a","values":[""]}"#, 200);
    let message = refused(&format!(r#"{{"params":[{params}]}}"#));
    assert!(message.starts_with("too many params (at most 64;"), "{message}");
}

#[test]
fn many_short_arguments_count_with_the_memory_that_they_take() {
    let request = JobRequest { command: vec!["x".to_owned(); 60_000], ..request() };
    let checked = CheckedRequest::new(request).expect("it is not too long");
    assert!(checked.request().stored_bytes > 3 << 20, "{}", checked.request().stored_bytes);
}
