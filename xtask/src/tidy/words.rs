//! Words that mislead, because others use them for something else: docs/glossary.md says which word
//! stands for what, and its last column lists these.

/// The word, and the one to use.
pub(super) const MISLEADING: [(&str, &str); 7] = [
    ("ThreadHost", "RankThread"),
    ("chunks_per_rank", "stages_per_rank"),
    ("chunks: usize", "stages_per_rank: usize"),
    ("--chunks", "--stages-per-rank"),
    ("virtual stages", "stages per rank"),
    ("stage_updates", "atomic_updates"),
    ("LayerCell", "ErasedLayer or TrainedLayer"),
];

/// Misleading words in a Rust file: of chunks only comments are asked, as slices have methods of
/// that name.
pub(super) fn in_code(text: &str) -> Vec<String> {
    found(text.lines().map(|line| (line, line.trim_start().starts_with("//"))))
}

/// Misleading words in a document.
pub(super) fn in_prose(text: &str) -> Vec<String> {
    let mut is_code = false;
    found(text.lines().map(|line| {
        is_code ^= line.trim_start().starts_with("```");
        (line, !is_code)
    }))
}

/// Of lines, and whether they are prose.
fn found<'a>(lines: impl Iterator<Item = (&'a str, bool)>) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, (line, is_prose)) in lines.enumerate() {
        for (word, better) in MISLEADING.iter().filter(|(word, _)| has(line, word)) {
            problems.push(format!("{}: `{word}` is said here as {better}", number + 1));
        }
        // Outside of code marks.
        let mut prose = line.split('`').step_by(2);
        if is_prose && prose.any(|prose| has(prose, "chunk") || has(prose, "chunks")) {
            problems.push(format!("{}: chunks are stages here, or micro-batches", number + 1));
        }
    }
    problems
}

/// Whether a line has a word, as a whole.
fn has(line: &str, word: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_of_name) && !after.starts_with(is_of_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misleading_words_are_found() {
        assert_eq!(
            in_code("for pair in row.chunks(2) {\n    // See [`slice::chunks`].\n"),
            [""; 0]
        );
        assert_eq!(
            in_code("    // A rank has chunks."),
            ["1: chunks are stages here, or micro-batches"]
        );
        assert_eq!(in_code("\nimpl ThreadHost"), ["2: `ThreadHost` is said here as RankThread"]);
        assert_eq!(
            in_prose("Each chunk\nis `chunks`."),
            ["1: chunks are stages here, or micro-batches"]
        );
    }
}
