//! One line of output: does it show progress?

use super::text::{LinePart, tokens};

/// What a line shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LineProgress {
    /// Words that say of what, without numbers; bars with the same label continue each other.
    pub(super) label: String,
    /// Steps done, and in all.
    pub(super) steps: Option<(u64, Option<u64>)>,
    /// The epoch, and how many there are.
    pub(super) epoch: Option<(u64, Option<u64>)>,
}

/// Longer lines are data.
const LINE_MAX: usize = 2000;
/// Parts of a line that are looked at.
const TOKENS_MAX: usize = 48;
/// Characters of a label.
const LABEL_MAX: usize = 32;
/// Words before the number of a step, with a total or without.
const STEP_WORDS: [&str; 7] =
    ["step", "iter", "iteration", "it", "update", "global_step", "train_step"];
/// Words before the number of a step if a total follows it.
const STEP_WORDS_OF: [&str; 6] = ["steps", "iters", "iterations", "updates", "batch", "batches"];
/// The characters of bars.
const BAR: [char; 8] = ['━', '╸', '╺', '█', '▌', '=', '>', '#'];

/// The progress that a line shows; `None` if it shows none.
pub(super) fn parse(line: &str) -> Option<LineProgress> {
    let line = line.trim();
    if line.len() > LINE_MAX || is_transfer(line) {
        return None;
    }
    let bar = tqdm(line).or_else(|| endless(line)).or_else(|| keras(line));
    let tokens = tokens(line, TOKENS_MAX);
    let epoch = epoch(&tokens);
    if let Some((label, steps)) = bar {
        return Some(LineProgress { label: words(label), steps: Some(steps), epoch });
    }
    let named = named_step(&tokens).or_else(|| bracketed(&tokens)).or_else(|| in_epoch(&tokens));
    let (label, steps) = match named.or_else(|| drawn(line)) {
        Some((label, steps)) => (label, Some(steps)),
        None => (String::new(), None),
    };
    (steps.is_some() || epoch.is_some()).then_some(LineProgress { label, steps, epoch })
}

/// Downloads have bars, too.
fn is_transfer(line: &str) -> bool {
    line.contains("B/s") || line.contains("bytes/s") || line.contains("Downloading")
}

/// The letters of a label: numbers and values change from line to line.
fn words(label: &str) -> String {
    let letter = |character: char| if character.is_alphabetic() { character } else { ' ' };
    let letters: String = label.chars().map(letter).collect();
    let words: Vec<&str> = letters.split_whitespace().collect();
    words.join(" ").to_lowercase().chars().take(LABEL_MAX).collect()
}

/// ` 40%|████      | 120/300 [00:12<00:18,  9.87it/s]`
fn tqdm(line: &str) -> Option<(&str, (u64, Option<u64>))> {
    let (before, after) = line.split_once("%|")?;
    let label = before.trim_end_matches(|character: char| character.is_ascii_digit());
    let counts = after.rsplit_once('|')?.1.trim_start();
    let (counts, times) = counts.split_once('[')?;
    if !(times.contains(':') || times.contains('?')) {
        return None;
    }
    let (done, total) = counts.trim().split_once('/')?;
    Some((label, (scaled(done)?, Some(scaled(total)?))))
}

/// `120it [00:12,  9.87it/s]`: a bar without a total.
fn endless(line: &str) -> Option<(&str, (u64, Option<u64>))> {
    let (before, times) = line.split_once("it [")?;
    if !(times.contains("it/s") || times.contains("s/it")) {
        return None;
    }
    let start = before.rfind(|character: char| !is_count(character)).map_or(0, |at| at + 1);
    let start = if before.is_char_boundary(start) { start } else { return None };
    Some((&before[..start], (scaled(&before[start..])?, None)))
}

/// `120/300 [=====>....] - ETA: 12s`, `120/300 ━━━━ 3s 10ms/step` and `Epoch 0/9 ━━━━ 120/300 0:00:12`
fn keras(line: &str) -> Option<(&str, (u64, Option<u64>))> {
    let first = line.split_whitespace().next()?;
    let rest = line[first.len()..].trim_start();
    let is_bar = |text: &str| {
        let text = text.trim_start_matches('[');
        text.chars().take_while(|character| BAR.contains(character)).count() >= 3
            || text.starts_with("....")
    };
    // `300/300 - 3s - loss: 0.3`: a line at the end of each epoch.
    let is_summary = || {
        let mut words = rest.split_whitespace();
        words.next() == Some("-") && words.next().is_some_and(|time| time.ends_with('s'))
    };
    if let Some(counts) = counts(first)
        && (is_bar(rest) || is_summary())
    {
        return Some(("", counts));
    }
    // The counts follow the bar.
    let bar = line.find(['━', '╸', '╺'])?;
    let after = line[bar..].trim_start_matches(['━', '╸', '╺', ' ']);
    let counts = counts(after.split_whitespace().next()?)?;
    Some((&line[..bar], counts))
}

/// `120/300`
fn counts(text: &str) -> Option<(u64, Option<u64>)> {
    let (done, total) = text.split_once('/')?;
    Some((scaled(done)?, Some(scaled(total)?)))
}

fn is_count(character: char) -> bool {
    character.is_ascii_digit() || matches!(character, '.' | 'k' | 'M' | 'G')
}

/// `1200`, or `1.20k`.
fn scaled(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, factor) = match text.chars().last()? {
        'k' => (&text[..text.len() - 1], 1e3),
        'M' => (&text[..text.len() - 1], 1e6),
        'G' => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    if let (Ok(whole), true) = (digits.parse(), factor == 1.0) {
        return Some(whole);
    }
    let value: f64 = digits.parse().ok()?;
    (value.is_finite() && value >= 0.0).then(|| (value * factor).round() as u64)
}

/// A number after a word, with or without a total: `Step: [120/300]`, `step=120`, `iter 120 of 300`.
fn after_word(tokens: &[LinePart], at: usize) -> Option<(u64, Option<u64>)> {
    let mut rest = tokens[at + 1..].iter().skip_while({
        let mut signs = 0;
        move |token| {
            signs += 1;
            let is_sign =
                matches!(token, LinePart::Sign(':' | '=' | '[' | '(' | '#' | '"' | '\'' | ' '));
            is_sign && signs <= 3
        }
    });
    let LinePart::Number(done) = rest.next()? else { return None };
    let total = match (rest.next(), rest.next()) {
        (Some(LinePart::Sign('/')), Some(LinePart::Number(total))) => Some(*total),
        (Some(LinePart::Text(of)), Some(LinePart::Number(total))) if of == "of" => Some(*total),
        // A fraction of something, or a percentage.
        (Some(LinePart::Sign('/' | '%')), _) => return None,
        _ => None,
    };
    Some((*done, total))
}

/// `time per step: 12` and `ms/step 12` are no numbers of steps.
fn is_ratio(tokens: &[LinePart], at: usize) -> bool {
    match at.checked_sub(1).map(|before| &tokens[before]) {
        Some(LinePart::Sign('/')) => true,
        Some(LinePart::Text(word)) => matches!(word.as_str(), "per" | "each" | "every" | "max"),
        _ => false,
    }
}

fn named_step(tokens: &[LinePart]) -> Option<(String, (u64, Option<u64>))> {
    tokens.iter().enumerate().find_map(|(at, token)| {
        let LinePart::Text(word) = token else { return None };
        let of = STEP_WORDS_OF.contains(&word.as_str());
        if !(of || STEP_WORDS.contains(&word.as_str())) || is_ratio(tokens, at) {
            return None;
        }
        let steps = after_word(tokens, at)?;
        (!of || steps.1.is_some()).then(|| (word.clone(), steps))
    })
}

/// `Epoch: [0][120/300]`, `Train Epoch: 1 [6400/60000 (11%)]`, and `[120/300]` at the start of a line.
fn bracketed(tokens: &[LinePart]) -> Option<(String, (u64, Option<u64>))> {
    let from = tokens.iter().position(|token| *token == LinePart::Sign('['))?;
    let is_word =
        |token: &LinePart| matches!(token, LinePart::Text(word) if word.starts_with("epoch"));
    let epoch = tokens.iter().position(is_word);
    if from != 0 && epoch.is_none() {
        return None;
    }
    let from = epoch.unwrap_or(from);
    let found = tokens[from..].windows(5).find_map(|five| match five {
        [
            LinePart::Sign('['),
            LinePart::Number(done),
            LinePart::Sign('/'),
            LinePart::Number(total),
            LinePart::Sign(']' | '('),
        ] => Some((*done, Some(*total))),
        _ => None,
    })?;
    // `Epoch [3/10]` counts epochs.
    let is_numbered = epoch.is_some_and(|at| after_word(tokens, at) != Some(found));
    (epoch.is_none() || is_numbered).then(|| ("[]".to_owned(), found))
}

/// `epoch 001:    120 / 300 loss=0.3`
fn in_epoch(tokens: &[LinePart]) -> Option<(String, (u64, Option<u64>))> {
    tokens.windows(6).find_map(|six| match six {
        [
            LinePart::Text(word),
            LinePart::Number(_),
            LinePart::Sign(':'),
            LinePart::Number(done),
            LinePart::Sign('/'),
            LinePart::Number(total),
        ] if word == "epoch" => Some((word.clone(), (*done, Some(*total)))),
        _ => None,
    })
}

/// Any other line with a bar in it, and counts or a percentage: `|####  | 120/300`, `[###---]  40%`,
/// `━━━━━━  40% 0:00:12`, ` 40% (120 of 300) |####  |`.
fn drawn(line: &str) -> Option<(String, (u64, Option<u64>))> {
    let mut bars = line.match_indices(['━', '█', '#', '=']).map(|(at, _)| at);
    let start = bars.find(|&at| {
        let bar = line[at..].chars().next();
        let is_long = line[at..].chars().take_while(|next| Some(*next) == bar).count() >= 3;
        // Headings are underlined with the others.
        let is_framed = line[..at].trim_end().ends_with(['[', '|', '▕']);
        is_long && (is_framed || matches!(bar, Some('━' | '█')))
    })?;
    let is_bar = |character: &char| BAR.contains(character) || *character == '-';
    let text: String = line.chars().filter(|character| !is_bar(character)).collect();
    let tokens = tokens(&text, TOKENS_MAX);
    let counts = tokens.windows(3).find_map(|three| match three {
        [LinePart::Number(done), LinePart::Sign('/'), LinePart::Number(total)] => {
            Some((*done, *total))
        }
        [LinePart::Number(done), LinePart::Text(of), LinePart::Number(total)] if of == "of" => {
            Some((*done, *total))
        }
        _ => None,
    });
    let percentage = || {
        let number = tokens.windows(2).find_map(|two| match two {
            [LinePart::Number(number), LinePart::Sign('%')] => Some(*number),
            _ => None,
        });
        number.filter(|&number| number <= 100).map(|number| (number, 100))
    };
    let (done, total) = counts.or_else(percentage)?;
    Some((words(&line[..start]), (done, Some(total))))
}

/// `Epoch 3/10`, `Epoch [3/10]`, `epoch: 3`.
fn epoch(tokens: &[LinePart]) -> Option<(u64, Option<u64>)> {
    tokens.iter().enumerate().take(12).find_map(|(at, token)| {
        let is_epoch = matches!(token, LinePart::Text(word) if word == "epoch" || word == "ep");
        (is_epoch && !is_ratio(tokens, at)).then(|| after_word(tokens, at)).flatten()
    })
}
