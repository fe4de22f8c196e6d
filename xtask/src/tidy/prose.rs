//! Rules for prose, in comments and in documents: lines end by a column, summaries don't begin with
//! "What", and no sentence is longer than one breath.

/// Where the longest line of prose ends: what fits beside another file, and in a review.
pub(super) const COLUMNS: usize = 100;
/// A longer sentence wants to be two.
const WORDS: usize = 35;

/// Comment lines that are too long: of Rust and TOML, whose comments begin with `mark`.
pub(super) fn long_comments(text: &str, mark: &str) -> Vec<String> {
    let mut is_code = false;
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix(mark) else { continue };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        is_code ^= comment.starts_with("```");
        if !is_code && !comment.starts_with('|') {
            problems.extend(too_long(number, line));
        }
    }
    problems
}

/// Lines of a document that are too long, apart from tables and code.
pub(super) fn long_lines(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        let is_exempt = ["|", "<", "    "].iter().any(|start| line.starts_with(start));
        if !is_code && !is_exempt {
            problems.extend(too_long(number, line));
        }
    }
    problems
}

/// A link can't be wrapped: what counts is that nothing else stands beyond the column.
fn too_long(number: usize, line: &str) -> Option<String> {
    let length = line.chars().count();
    if length <= COLUMNS {
        return None;
    }
    let last = line.split_whitespace().next_back().unwrap_or_default();
    let is_link = last.contains("](") || last.contains("://");
    let rest = length - last.chars().count();
    (!(is_link && rest <= COLUMNS))
        .then(|| format!("{}: ends in column {length}, not by {COLUMNS}", number + 1))
}

/// Summaries of doc comments that begin with "What": a verb, or the thing's name, says the same
/// sooner.
pub(super) fn summaries(text: &str) -> Vec<String> {
    let mut before = "";
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = doc(line);
        let is_summary = doc.is_some() && self::doc(before).is_none();
        if is_summary && doc.is_some_and(|doc| doc.trim_start().starts_with("What ")) {
            problems.push(format!("{}: a summary begins with \"What\"", number + 1));
        }
        before = line;
    }
    problems
}

fn doc(line: &str) -> Option<&str> {
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// Sentences that are too long, in the doc comments of a Rust file.
pub(super) fn long_doc_sentences(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .map(|line| doc(line.trim_start()).map(|doc| doc.strip_prefix(' ').unwrap_or(doc)));
    long_sentences(lines.map(Option::unwrap_or_default))
}

/// Sentences that are too long, in lines of Markdown.
pub(super) fn long_sentences<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut is_code = false;
    let mut problems = Vec::new();
    let mut sentence = Sentence::default();
    for (number, line) in lines.enumerate() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        is_code ^= is_fence;
        let is_item = ["- ", "* ", "+ "].iter().any(|mark| trimmed.starts_with(mark))
            || trimmed.split_once(". ").is_some_and(|(n, _)| n.parse::<usize>().is_ok());
        let is_apart = is_code
            || is_fence
            || trimmed.is_empty()
            || ["|", "#", "<"].iter().any(|mark| trimmed.starts_with(mark))
            || trimmed.starts_with('[') && trimmed.contains("]:")
            || line.starts_with("    ") && sentence.words == 0;
        if is_item || is_apart {
            problems.extend(sentence.end());
        }
        if is_apart {
            continue;
        }
        let prose = without_code(trimmed);
        for word in prose.split_whitespace().skip(usize::from(is_item)) {
            if word.chars().any(char::is_alphanumeric) {
                sentence.begin(number + 1);
            }
            let bare = word.trim_end_matches(['"', '\'', ')', '*', '_', '”']);
            if bare.ends_with(['.', '!', '?']) && !is_abbreviation(bare) {
                problems.extend(sentence.end());
            }
        }
    }
    problems.extend(sentence.end());
    problems
}

/// Code in a sentence is one word, and a link is its text.
fn without_code(line: &str) -> String {
    let mut prose = String::new();
    for (place, piece) in line.split('`').enumerate() {
        prose.push_str(if place % 2 == 1 { "code" } else { piece });
    }
    while let Some(start) = prose.find("](") {
        let end = prose[start..].find(')').map_or(prose.len(), |end| start + end + 1);
        prose.replace_range(start..end, "");
    }
    prose
}

fn is_abbreviation(word: &str) -> bool {
    ["e.g.", "i.e.", "vs.", "etc.", "p."].contains(&word.trim_start_matches('('))
}

/// A sentence that is being counted.
#[derive(Default)]
struct Sentence {
    line: usize,
    words: usize,
}

impl Sentence {
    /// Counts a word.
    fn begin(&mut self, line: usize) {
        if self.words == 0 {
            self.line = line;
        }
        self.words += 1;
    }

    fn end(&mut self) -> Option<String> {
        let Self { line, words } = std::mem::take(self);
        (words > WORDS).then(|| format!("{line}: a sentence of {words} words; {WORDS} are enough"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_by_a_column() {
        let (long, short) = ("word ".repeat(20) + "end", "word ".repeat(18) + "words");
        assert_eq!(long_comments(&format!("// {long}"), "//").len(), 1);
        assert_eq!(long_comments(&format!("    /// {long}"), "//").len(), 1);
        assert_eq!(long_comments(&format!("# {long}"), "#").len(), 1);
        assert_eq!(long_comments(&format!("// {short}\nlet x = \"{long}\";"), "//"), [""; 0]);
        assert_eq!(
            long_comments(&format!("/// ```\n/// {long}\n/// ```\n/// | {long}"), "//"),
            [""; 0]
        );
        assert_eq!(long_lines(&format!("{long}\n")), ["1: ends in column 103, not by 100"]);
        assert_eq!(long_lines(&format!("{short}\n| {long} |\n```\n{long}\n```\n")), [""; 0]);
        let link = format!("see [this](https://example.org/{})", "x".repeat(100));
        assert_eq!(long_lines(&link), [""; 0]);
        assert_eq!(long_lines(&format!("{link} and that")).len(), 1);
    }

    #[test]
    fn summaries_begin_with_a_verb_or_a_name() {
        assert_eq!(
            summaries("/// What it does.\nfn f() {}"),
            ["1: a summary begins with \"What\""]
        );
        assert_eq!(summaries("//! What is here.\n").len(), 1);
        assert_eq!(
            summaries("/// Does it.\n/// What else it does is its own.\nfn f() {}"),
            [""; 0]
        );
        assert_eq!(summaries("// What follows is slow.\n"), [""; 0]);
    }

    #[test]
    fn sentences_are_short() {
        let sentence = |words: usize| "word ".repeat(words - 1) + "end.";
        let lines = |text: &str| long_sentences(text.lines());
        assert_eq!(lines(&sentence(36)), ["1: a sentence of 36 words; 35 are enough"]);
        assert_eq!(lines(&format!("{}\n{}", sentence(35), sentence(35))), [""; 0]);
        // Over several lines, with an abbreviation and a link.
        let long = format!("{} e.g.\n[a](b c d) {}", "word ".repeat(17), sentence(18));
        assert_eq!(
            lines(&format!("Short.\n\n{long}")),
            ["3: a sentence of 37 words; 35 are enough"]
        );
        // Items, tables, code and headings are no sentences.
        assert_eq!(lines(&format!("{}\n", "- word word\n".repeat(40))), [""; 0]);
        assert_eq!(lines(&format!("| {} |\n```\n{0}\n```\n# {0}", "word ".repeat(40))), [""; 0]);
        assert_eq!(lines(&format!("`{}` is one word.", "word ".repeat(40))), [""; 0]);
        let doc = format!("/// {}\n/// {}\nfn f() {{}}\n", "word ".repeat(20), sentence(20));
        assert_eq!(long_doc_sentences(&doc), ["1: a sentence of 40 words; 35 are enough"]);
        let code = format!("/// Short.\nlet x = \"{}\";\n// {}\n", sentence(40), sentence(40));
        assert_eq!(long_doc_sentences(&code), [""; 0]);
    }
}
