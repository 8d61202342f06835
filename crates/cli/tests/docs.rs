//! The documentation: every link leads somewhere, every command in it is one that the program has, every
//! Python example is valid, and there is not too much of it. Pages that the program writes are written first.

#![allow(clippy::unwrap_used)]

mod common;

use common::{finish, read, succeed_in, tandem, workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Words for users, at most: all tracked pages without those for developers, the change log and what a program writes
/// (`tandem reference`, the tables of `tandem bench quality`). With those for developers 22,500: half
/// of what there was when newcomers drowned.
const USERS_MAX: usize = 18_200;

/// Words for developers, at most: decisions, ARCHITECTURE.md, CONTRIBUTING.md, notes beside the code.
const DEVELOPERS_MAX: usize = 4_300;

/// Tracked Markdown files by their path, with the generated ones.
fn pages() -> BTreeMap<PathBuf, String> {
    let root = workspace();
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output();
    let tracked: Vec<PathBuf> = match listed {
        Ok(listed) if listed.status.success() => String::from_utf8(listed.stdout)
            .unwrap()
            .split('\0')
            .filter(|name| name.ends_with(".md"))
            .map(PathBuf::from)
            .collect(),
        _ => common::listing(&root.join("docs"))
            .into_keys()
            .filter(|path| path.extension().is_some_and(|end| end == "md"))
            .map(|path| Path::new("docs").join(path))
            .chain(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(PathBuf::from))
            .collect(),
    };
    let mut pages: BTreeMap<PathBuf, String> = tracked
        .into_iter()
        .filter(|path| root.join(path).exists())
        .map(|path| (path.clone(), read(&root.join(&path))))
        .collect();
    let folder = common::folder();
    succeed_in(folder.path(), &["reference", "--out", "pages"]);
    for (name, content) in common::listing(&folder.path().join("pages")) {
        let text = String::from_utf8(content.unwrap()).unwrap();
        pages.insert(Path::new("docs/reference").join(name), text);
    }
    pages
}

/// A page without its code blocks and code spans.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !line.starts_with("    ") {
            let outside = line.split('`').step_by(2);
            out += &outside.collect::<Vec<_>>().join(" ");
            out.push('\n');
        }
    }
    out
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut in_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if let Some(heading) = line.strip_prefix('#').filter(|_| !in_code) {
            found.insert(anchor(heading.trim_start_matches('#')));
        }
    }
    found
}

/// `a/b/../c` is `a/c`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut done, part| {
        match part {
            Component::ParentDir => drop(done.pop()),
            Component::CurDir => {}
            other => done.push(other),
        }
        done
    })
}

/// Targets of the links of a page.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let mut found = Vec::new();
    let mut rest = prose.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        if let Some(end) = rest.find(')') {
            found.push(rest[..end].to_owned());
        }
    }
    found
}

#[test]
fn every_internal_link_leads_somewhere() {
    let pages = pages();
    let root = workspace();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                plain(&page.parent().unwrap_or(Path::new("")).join(file))
            };
            let there = pages.contains_key(&target) || root.join(&target).exists();
            let anchored = fragment.is_empty()
                || pages.get(&target).is_none_or(|text| anchors(text).contains(fragment));
            if !there || !anchored {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_of_the_site_is_in_its_summary() {
    let pages = pages();
    let summary: BTreeSet<PathBuf> = links(&pages[Path::new("docs/SUMMARY.md")])
        .iter()
        .map(|link| plain(&Path::new("docs").join(link)))
        .collect();
    let missing: Vec<_> = pages
        .keys()
        .filter(|page| page.starts_with("docs") && !page.starts_with("docs/decisions"))
        .filter(|page| !page.ends_with("SUMMARY.md") && !summary.contains(*page))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Lines of text right below a table or a list, where a renderer makes them a row or a part of the last item.
fn swallowed(text: &str) -> Vec<&str> {
    let is_item = |line: &str| {
        let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        line.starts_with("- ") || after_number != line && after_number.starts_with(". ")
    };
    let mut found = Vec::new();
    let (mut in_code, mut above) = (false, "");
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !in_code && !is_fence && !line.trim().is_empty() {
            let below_row = above.starts_with('|') && !line.starts_with('|');
            let below_item = is_item(above) && !line.starts_with(' ') && !is_item(line);
            if below_row || below_item {
                found.push(line);
            }
        }
        in_code ^= is_fence;
        above = if in_code || is_fence { "" } else { line };
    }
    found
}

#[test]
fn an_empty_line_ends_every_table_and_list() {
    assert_eq!(swallowed("| a |\ntext\n\n- b\n  more\ntext\n- c\ntext\n"), ["text", "text"]);
    assert!(swallowed("| a |\n\n1. b\n2. c\n```\n- d\ne\n```\n").is_empty());
    for (page, text) in pages() {
        assert_eq!(swallowed(&text), [""; 0], "{}", page.display());
    }
}

/// Code blocks of a page with their language.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.trim_start().strip_prefix("```") {
            Some(_) if inside => inside = false,
            Some(language) => {
                inside = true;
                found.push((language.to_owned(), String::new()));
            }
            None if inside => {
                let (_, block) = found.last_mut().unwrap();
                *block += line;
                block.push('\n');
            }
            None => {}
        }
    }
    found
}

/// The words of a command up to a pipe, a comment or another end.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut quote, mut inside, mut fresh) = (None, false, true);
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => (quote, inside) = (Some(c), true),
            (Some(open), c) if open == c => quote = None,
            (None, '#' | ';' | '|' | '&' | '>') if !inside => break,
            (None, ';' | '|' | '&') => break,
            (None, c) if c.is_whitespace() => (inside, fresh) = (false, true),
            (_, c) => {
                if std::mem::take(&mut fresh) {
                    words.push(String::new());
                }
                inside = true;
                words.last_mut().unwrap().push(c);
                continue;
            }
        }
        if inside && std::mem::take(&mut fresh) {
            words.push(String::new());
        }
    }
    words
}

/// Commands of `tandem` in the code blocks of shells, continued lines joined.
fn commands(text: &str) -> Vec<String> {
    let shells = blocks(text)
        .into_iter()
        .filter(|(language, _)| ["", "sh", "console", "bash"].contains(&language.as_str()));
    let mut found = Vec::new();
    for (_, block) in shells {
        // In a transcript the other lines are what the commands print.
        let is_transcript = block.starts_with("$ ") || block.contains("\n$ ");
        for line in block.replace("\\\n", " ").lines() {
            if is_transcript && !line.starts_with("$ ") {
                continue;
            }
            for part in line.trim_start_matches("$ ").split("; ") {
                let part = part.trim();
                if part.starts_with("tandem ") {
                    found.push(part.to_owned());
                }
            }
        }
    }
    found
}

#[test]
fn every_command_of_the_documentation_is_one_that_the_program_has() {
    let mut wrong = Vec::new();
    let mut count = 0;
    let mut seen = BTreeSet::new();
    for (page, text) in &pages() {
        for command in commands(text) {
            let words = words(&command);
            // What stands for something else, and lists of alternatives, cannot be checked by the program.
            let before: Vec<&str> =
                words.iter().skip(1).map(String::as_str).take_while(|word| *word != "--").collect();
            let is_pattern = |word: &&&str| {
                word.contains('…')
                    || word.contains("...")
                    || word.starts_with('[')
                    || word.contains('$')
            };
            if before.iter().any(|word| is_pattern(&word)) || page.ends_with("CHANGELOG.md") {
                continue;
            }
            let verbs: Vec<&str> =
                before.iter().take_while(|word| !word.starts_with('-')).copied().collect();
            let flags: Vec<&str> = before
                .iter()
                .filter(|word| word.starts_with("--"))
                .map(|word| word.split('=').next().unwrap())
                .collect();
            count += 1;
            if !seen.insert((verbs.first().copied().unwrap_or("").to_owned(), flags.join(" "))) {
                continue;
            }
            if let Some(problem) = unknown(&verbs, &flags) {
                wrong.push(format!("{}: {command}: {problem}", page.display()));
            }
        }
    }
    assert!(count > 40, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the help of a command does not know.
fn unknown(verbs: &[&str], flags: &[&str]) -> Option<String> {
    let verb = verbs.first()?;
    let mut help = finish(&mut tandem(&[verb, "--help"]));
    if help.code != Some(0) {
        return Some(format!("there is no command {verb}"));
    }
    if let Some(second) = verbs.get(1) {
        let deeper = finish(&mut tandem(&[verb, second, "--help"]));
        if deeper.code == Some(0) {
            help = deeper;
        }
    }
    let knows = |flag: &&&str| {
        help.stdout
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .any(|word| word == **flag)
    };
    flags.iter().find(|flag| !knows(flag)).map(|flag| format!("{verb} has no option {flag}"))
}

/// The first block of a page in this language that contains a word; in lists blocks are indented.
fn block(page: &Path, language: &str, word: &str) -> String {
    let text = read(&workspace().join(page));
    let found =
        blocks(&text).into_iter().find(|(is, block)| is == language && block.contains(word));
    found.unwrap_or_else(|| panic!("{}: no {language} block with {word}", page.display())).1
}

#[test]
fn configuration_shares_and_clusters_of_the_documents_are_accepted() {
    let folder = common::folder();
    let administrator = Path::new("docs/administrator.md");
    std::fs::create_dir(folder.path().join("tandem")).unwrap();
    common::write(folder.path(), "tandem/config.toml", block(administrator, "toml", "operators"));
    let mut show = tandem(&["config", "show", "--origin"]);
    let shown = finish(show.env("XDG_CONFIG_HOME", folder.path()));
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains("/etc/tandem/shares.toml"), "{}", shown.stdout);
    // A cluster file may hold the tables of a shares file but the last one, for which traces have a column.
    let shares = block(administrator, "toml", "[fair_share]");
    let shares = &shares[shares.find("[fair_share]").unwrap()..shares.find("[[qos]]").unwrap()];
    let cluster = block(Path::new("docs/traces.md"), "toml", "[[partition]]");
    common::write(folder.path(), "cluster.toml", shares.to_owned() + &cluster);
    common::write(
        folder.path(),
        "jobs.csv",
        "job_id,submit_s,gpus,duration_s,user,partition\n1,0,4,10,ann,train\n2,0,1,10,guest,train\n",
    );
    let args = ["sim", "--trace", "jobs.csv", "--cluster", "cluster.toml", "--policy", "fifo"];
    succeed_in(folder.path(), &args);
}

#[test]
fn the_policy_of_the_guide_in_python_runs_by_the_commands_below_it() {
    if Command::new("python3").arg("--version").output().is_err() {
        common::skipped("there is no python3");
        return;
    }
    let folder = common::folder();
    let guide = Path::new("docs/developers/add-a-policy.md");
    let policy = block(guide, "python", "class ShortestFirst");
    common::write(folder.path(), "shortest.py", policy);
    let trace = ["trace", "generate", "--jobs", "60", "--gpus", "64", "--out", "jobs.csv"];
    succeed_in(folder.path(), &trace);
    let mut count = 0;
    for command in commands(&format!("```\n{}```", block(guide, "", "ShortestFirst"))) {
        let words = words(&command);
        let args: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
        let mut run = tandem(&args);
        run.current_dir(folder.path()).env("PYTHONPATH", workspace().join("python/src"));
        let ran = finish(&mut run);
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
        assert!(ran.stdout.contains("shortest.py"), "{}", ran.stdout);
        count += 1;
    }
    assert_eq!(count, 2);
}

#[test]
fn examples_in_python_are_valid() {
    let mut blocks_of_python = 0;
    for (page, text) in &pages() {
        for (language, block) in blocks(text) {
            if language != "python" || block.contains("...") {
                continue;
            }
            blocks_of_python += 1;
            let check = "import ast, sys; ast.parse(sys.argv[1])";
            let Ok(ran) = Command::new("python3").args(["-c", check, &block]).output() else {
                common::skipped("there is no python3");
                return;
            };
            let said = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{}: {block}\n{said}", page.display());
        }
    }
    assert!(blocks_of_python > 5);
}

#[test]
fn the_documentation_is_short() {
    let pages = pages();
    let words = |is_counted: &dyn Fn(&Path) -> bool| -> usize {
        let counted = pages.iter().filter(|(page, _)| is_counted(page));
        counted.map(|(_, text)| text.split_whitespace().count()).sum()
    };
    let written_or_log = ["docs/reference", "docs/results-tables.md", "CHANGELOG.md"];
    let is_of = |page: &Path, ones: &[&str]| ones.iter().any(|one| page.starts_with(one));
    let developers = ["docs/decisions", "crates", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    let for_developers = words(&|page| is_of(page, &developers));
    let for_users = words(&|page| !is_of(page, &developers) && !is_of(page, &written_or_log));
    for (words, most) in [(for_users, USERS_MAX), (for_developers, DEVELOPERS_MAX)] {
        assert!(words > most / 2, "only {words} words were found");
        assert!(words <= most, "{words} words; shorten rather than raise the limit of {most}");
    }
}

#[test]
fn the_site_builds_without_warnings() {
    let home = std::env::var("HOME").unwrap();
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or(format!("{home}/.cache"));
    if !Path::new(&cache).join("tandem-tools/bin/mdbook").exists() {
        common::skipped("mdbook is not installed; scripts/docs installs it");
        return;
    }
    // It fails on warnings.
    let mut build = Command::new(workspace().join("scripts/docs"));
    build.env("TANDEM_BINARY", env!("CARGO_BIN_EXE_tandem"));
    let ran = finish(&mut build);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let site = workspace().join("target/site");
    assert!(site.join("reference/command-line.html").exists());
    let broken = broken_links(&site);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Values of an attribute in a page of the site.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let begin = format!(" {attribute}=\"");
    html.split(&begin).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// Links of the built pages to files and anchors of the site that are not there.
fn broken_links(site: &Path) -> Vec<String> {
    let files = common::listing(site);
    let pages: BTreeMap<&PathBuf, String> = files
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "html"))
        .filter_map(|(path, content)| Some((path, String::from_utf8(content.clone()?).unwrap())))
        .collect();
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(page, html)| (*page, values(html, "id").into_iter().collect()))
        .collect();
    let (mut count, mut broken) = (0, Vec::new());
    // The page that is shown in place of a missing one has links from the root of a server.
    for (page, html) in pages.iter().filter(|(page, _)| !page.ends_with("404.html")) {
        for link in ["href", "src"].into_iter().flat_map(|attribute| values(html, attribute)) {
            if link.contains(':') {
                continue;
            }
            count += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => (*page).clone(),
                file => plain(&page.parent().unwrap_or(Path::new("")).join(file)),
            };
            let is_anchored = fragment.is_empty()
                || anchors.get(&target).is_none_or(|ids| ids.contains(fragment));
            if !files.contains_key(&target) || !is_anchored {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 1_000, "only {count} links were found");
    broken
}
