//! Output as programs print it: bars recorded from tqdm and rich, the others as their documentation shows them.

use super::line::parse;
use super::{Printed, ProgressTracker};

/// Steps and total by one line.
fn steps(line: &str) -> Option<(u64, Option<u64>)> {
    parse(line)?.steps
}

fn epoch(line: &str) -> Option<(u64, Option<u64>)> {
    parse(line)?.epoch
}

/// What a tracker has found at the end of output that comes in pieces of so many bytes.
fn read(text: &str, piece: usize) -> Option<Printed> {
    let mut tracker = ProgressTracker::default();
    let (mut last, mut rest) = (None, text);
    while !rest.is_empty() {
        // As a file is read: up to the end of a bar.
        let from = rest.char_indices().map(|(at, _)| at).find(|&at| at >= piece);
        let ends = |part: &str| part.find(['\r', '\n']).map(|at| at + 1);
        let end = from.and_then(|from| Some(from + ends(&rest[from..])?)).unwrap_or(rest.len());
        last = tracker.read(&rest[..end]).or(last);
        rest = &rest[end..];
    }
    last
}

#[test]
fn bars_of_tqdm_are_recognised() {
    let of = |done, total| Some((done, Some(total)));
    assert_eq!(steps(" 40%|████      | 120/300 [00:12<00:18,  9.87it/s]"), of(120, 300));
    assert_eq!(
        steps("Epoch 1/3:  33%|#####6  | 40.0k/120k [00:00<00:00, 9.87Git/s, loss=0.3]"),
        of(40_000, 120_000)
    );
    assert_eq!(epoch("Epoch 1/3:  33%|#####6  | 40.0k/120k [00:00<00:00, 9it/s]"), of(1, 3));
    assert_eq!(steps("Epoch 1/3:   0%|        | 0.00/120k [00:00<?, ?it/s]"), of(0, 120_000));
    // Lightning does not say how many epochs there are.
    let lightning = "Epoch 4:  17%|█▋        | 51/300 [00:05<00:24, 10.1it/s, v_num=0, loss=2.31]";
    assert_eq!((steps(lightning), epoch(lightning)), (of(51, 300), Some((4, None))));
    // The Trainer of Hugging Face.
    assert_eq!(steps("  4%|▍         | 20/500 [00:12<05:00,  1.60it/s]"), of(20, 500));
    assert_eq!(steps("100%|██████████| 5/5 [01:02<00:00, 12.41s/it]"), of(5, 5));
    assert_eq!(steps("120it [00:12,  9.87it/s]"), Some((120, None)));
    assert_eq!(steps("Train: 12it [01:12,  6.04s/it]"), Some((12, None)));
    let download = "model.safetensors:  40%|████      | 120M/300M [00:10<00:18, 9.80MB/s]";
    assert_eq!(parse(download), None);
}

#[test]
fn bars_of_keras_and_rich_are_recognised() {
    let of = |done, total| Some((done, Some(total)));
    let old = "120/300 [===========>..................] - ETA: 12s - loss: 0.3021";
    assert_eq!(steps(old), of(120, 300));
    assert_eq!(steps("  1/300 [..............................] - ETA: 5:12"), of(1, 300));
    let new = "120/300 ━━━━━━━━━━━━━━━━━━━━ 3s 10ms/step - accuracy: 0.91 - loss: 0.30";
    assert_eq!(steps(new), of(120, 300));
    assert_eq!(epoch("Epoch 3/10"), of(3, 10));
    let rich = "Epoch 0/9  ━━━━━━━━━━━━━━╺━━━━━ 51/300 0:00:05 • 0:00:24 10.07it/s v_num: 0";
    assert_eq!((steps(rich), epoch(rich)), (of(51, 300), of(0, 9)));
}

#[test]
fn lines_that_name_a_step_are_recognised() {
    let of = |done, total| Some((done, Some(total)));
    assert_eq!(steps("step 120/300"), of(120, 300));
    assert_eq!(steps("2024-05-01 12:00:01 INFO Step: 120 / 300 loss 0.3"), of(120, 300));
    let both = "Epoch [3/10], Step [120/300], Loss: 0.3021";
    assert_eq!((steps(both), epoch(both)), (of(120, 300), of(3, 10)));
    let torchvision = "Epoch: [2][ 120/5005]\tTime  0.120 ( 0.130)\tLoss 3.2e+00 (3.1e+00)";
    assert_eq!((steps(torchvision), epoch(torchvision)), (of(120, 5005), Some((2, None))));
    assert_eq!(steps("iter 120: loss 2.3187, time 211.02ms, mfu 12.1%"), Some((120, None)));
    assert_eq!(steps("iteration 1,200 of 3,000"), of(1200, 3000));
    assert_eq!(steps(r#"{"step": 120, "loss": 0.3}"#), Some((120, None)));
    assert_eq!(steps("step=120 loss=0.3"), Some((120, None)));
    assert_eq!(steps("[120/300] loss 0.3"), of(120, 300));
    assert_eq!(steps("step 120 - loss: 0.3"), Some((120, None)));
}

#[test]
fn lines_of_well_known_scripts_are_recognised() {
    let of = |done, total| Some((done, Some(total)));
    // PyTorch's example for MNIST, mmdetection, fairseq, Keras with verbose=2.
    let mnist = "Train Epoch: 1 [6400/60000 (11%)]\tLoss: 0.302100";
    assert_eq!((steps(mnist), epoch(mnist)), (of(6400, 60_000), Some((1, None))));
    let mm = "2024-05-01 12:00:00,120 - mmdet - INFO - Epoch [1][50/7330]\tlr: 1.0e-03, eta: 1:2:3";
    assert_eq!(steps(mm), of(50, 7330));
    let fairseq = "2024-05-01 12:00:00 | INFO | train_inner | epoch 001:    120 / 300 loss=9.1";
    assert_eq!(steps(fairseq), of(120, 300));
    assert_eq!(steps("300/300 - 3s - loss: 0.3021 - 10ms/step"), of(300, 300));
    // alive_progress, click, rich, progressbar2.
    assert_eq!(steps("|████████        | 120/300 [40%] in 12s (10.0/s, eta: 18s)"), of(120, 300));
    assert_eq!(steps("train  [##############----------------------]   40%  00:00:18"), of(40, 100));
    assert_eq!(steps("Training... ━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━━  40% 0:00:18"), of(40, 100));
    assert_eq!(
        steps(" 40% (120 of 300) |#######            | Elapsed Time: 0:00:12 ETA:   0:00:18"),
        of(120, 300)
    );
    for heading in ["===== 5/10 =====", "##### Results: 40% #####", "[INFO] === 3/4 ==="] {
        assert_eq!(steps(heading), None, "{heading}");
    }
}

#[test]
fn epochs_are_the_steps_of_a_script_that_prints_nothing_else() {
    let line = |epoch: u64| format!("Epoch {epoch}/10, loss: 0.3021, accuracy: 92/100\n");
    let text: String = (1..=4).map(line).collect();
    assert_eq!(read(&text, 1), Some(Printed { steps: 4, total: Some(10) }));
    let unknown: String = (1..=4).map(|epoch| format!("epoch: {epoch} loss 0.3\n")).collect();
    assert_eq!(read(&unknown, 1), Some(Printed { steps: 4, total: None }));
    // Keras with verbose=2 shows each bar once.
    let line = |epoch| format!("Epoch {epoch}/5\n200/200 - 3s - loss: 0.30 - 10ms/step\n");
    let text: String = (1..=3).map(line).collect();
    assert_eq!(read(&text, 1), Some(Printed { steps: 600, total: Some(1000) }));
}

#[test]
fn other_lines_show_no_progress() {
    for line in [
        "",
        "loss 0.3021",
        "learning rate 3e-4, batch size 64",
        "time per step: 12 ms",
        "10 ms/step: 12",
        "max steps 1000",
        "3/4 of the data was read",
        "step 0.5",
        "step forward",
        "file 2024/05/01.csv",
        "2024-05-01 12:00:00 started",
        "accuracy 92/100",
        "progress |####|",
        "100%|",
        "%| | / [",
        "━━━━",
    ] {
        assert_eq!(steps(line), None, "{line}");
    }
    assert_eq!(parse(&"step 1/2 ".repeat(1000)), None, "a line of data");
}

/// Recorded: two epochs with a bar for training and one for validation in each.
const NESTED: &str = "\rEpochs:   0%|          | 0/2 [00:00<?, ?it/s]\n\rTrain:   0%|          | 0/300 [00:00<?, ?it/s]\x1b[A\n\
\rTrain:  33%|###3      | 100/300 [00:02<00:04, 49.67it/s]\x1b[A\n\rTrain:  67%|######6   | 200/300 [00:04<00:02, 49.01it/s]\x1b[A\n\
\rTrain: 100%|##########| 300/300 [00:06<00:00, 49.00it/s]\x1b[A\n\r                                            \x1b[A\n\
\rValidation:   0%|          | 0/20 [00:00<?, ?it/s]\x1b[A\n\rValidation: 100%|##########| 20/20 [00:00<00:00, 78.09it/s]\x1b[A\n\
\r                                 \x1b[A\rEpochs:  50%|#####     | 1/2 [00:06<00:06,  6.21s/it]\n\
\rTrain:   0%|          | 0/300 [00:00<?, ?it/s]\x1b[A\n\rTrain:  33%|###3      | 100/300 [00:02<00:04, 49.67it/s]\x1b[A\n";

#[test]
fn nested_bars_count_the_inner_steps_of_all_epochs() {
    for piece in [1, 7, 64, 10_000] {
        let printed = read(NESTED, piece);
        assert_eq!(printed, Some(Printed { steps: 400, total: Some(600) }), "{piece}");
    }
}

#[test]
fn epochs_that_are_named_make_the_total() {
    let mut text = String::new();
    for epoch in 1..=3 {
        text += &format!("Epoch {epoch}/5\n");
        for step in [1, 100, 200] {
            text += &format!("\r{step}/200 ━━━━━━━━━━ 3s 10ms/step - loss: 0.30");
        }
        text += "\n";
    }
    let printed = read(&text, 16);
    assert_eq!(printed, Some(Printed { steps: 600, total: Some(1000) }));
}

#[test]
fn a_total_that_the_output_does_not_tell_is_not_known() {
    // A second round of a bar without a number of epochs.
    let bar = |done: u64| format!("\r {done}%|####| {done}/100 [00:12<00:18,  9.87it/s]\n");
    let once = read(&(bar(10) + &bar(50)), 1);
    assert_eq!(once, Some(Printed { steps: 50, total: Some(100) }));
    let twice = read(&(bar(10) + &bar(100) + &bar(0) + &bar(20)), 1);
    assert_eq!(twice, Some(Printed { steps: 120, total: None }));
    let lightning = "\rEpoch 0:  17%|█▋        | 51/300 [00:05<00:24, 10.1it/s, v_num=0]\n";
    assert_eq!(read(lightning, 1), Some(Printed { steps: 51, total: None }));
}

#[test]
fn colours_and_titles_do_not_hide_a_bar() {
    let text = "\u{1b}]0;train\u{7}\u{1b}[2K\u{1b}[32mstep\u{1b}[0m \u{1b}[1m7\u{1b}[0m/9\n";
    assert_eq!(read(text, 1), Some(Printed { steps: 7, total: Some(9) }));
}

#[test]
fn hostile_output_is_harmless() {
    let mut state: u64 = 7;
    let pieces = [
        "%|",
        "|",
        "1/2",
        " [",
        "it [",
        "it/s",
        "━━━",
        "Epoch ",
        "step ",
        "\u{1b}[",
        "\r",
        "\n",
        "9".repeat(30).as_str(),
        "k/",
        "[0][",
        "é",
    ]
    .map(str::to_owned);
    let mut tracker = ProgressTracker::default();
    for _ in 0..5000 {
        let mut text = String::new();
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text += &pieces[(state >> 33) as usize % pieces.len()];
        }
        tracker.read(&text);
    }
}
