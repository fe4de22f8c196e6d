//! Words that mislead, because others use them for something else: docs/glossary.md says which word stands
//! for what, and its last column lists these.

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

/// Misleading words in a Rust file: of chunks only comments are asked, as slices have methods of that name.
pub(super) fn in_code(text: &str) -> Vec<String> {
    found(text, |line| line.trim_start().starts_with("//"))
}

/// Misleading words in a document.
pub(super) fn in_prose(text: &str) -> Vec<String> {
    found(text, |_| true)
}

fn found(text: &str, is_prose: impl Fn(&str) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (word, better) in MISLEADING.iter().filter(|(word, _)| line.contains(word)) {
            problems.push(format!("{}: `{word}` is said here as {better}", number + 1));
        }
        if is_prose(line) && has_chunks(line) {
            problems.push(format!("{}: chunks are stages here, or micro-batches", number + 1));
        }
    }
    problems
}

/// Whether a line speaks of chunks, outside of code marks.
fn has_chunks(line: &str) -> bool {
    let prose = line.split('`').step_by(2);
    prose
        .flat_map(|piece| piece.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .any(|word| ["chunk", "chunks"].contains(&word))
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
