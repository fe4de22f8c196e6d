//! [`Agreement`]: the facts that all ranks must agree on before a step. They are compared where
//! ranks are processes that could have been started differently.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use stovepipe_schedule::{Action, ComputeKind, Program, Rank};

use crate::error::StepError;

/// Named facts about a step that must be the same on every rank.
///
/// ```
/// use stovepipe_runtime::Agreement;
///
/// let seven = Agreement::new().with("the seed", 7);
/// let model = Agreement::new().with_fingerprint("the model", ["embed", "head"]);
/// assert_ne!(seven.clone().and(model), seven);
/// assert_ne!(seven, Agreement::new().with("the seed", 8));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Agreement(Vec<(String, String)>);

impl Agreement {
    /// Nothing to agree on.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fact as it should be shown. `name` goes into "rank 2 differs in {name}".
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a fact too long to be shown: only a hash of it travels. Hashes agree between processes
    /// of the same build.
    #[must_use]
    pub fn with_fingerprint(self, name: &str, value: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        self.with(name, format_args!("{:016x}", hasher.finish()))
    }

    /// Adds all facts of `other`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The facts that a program must have in common with those of other ranks.
    pub(crate) fn of_program(program: &Program) -> Self {
        let plan = program.plan();
        // Recomputation is a fact of its own; messages follow from the order and the cut.
        let ordered = |action: &&Action| {
            action.compute().is_some_and(|compute| compute.kind != ComputeKind::Recompute)
        };
        let rows = (0..plan.ranks()).map(|rank| {
            let row = program.row(rank).iter().filter(ordered);
            row.map(|action| format!("{action} ")).collect::<String>()
        });
        Self::new()
            .with("the version of stovepipe", env!("CARGO_PKG_VERSION"))
            .with("the number of stages", plan.stages())
            .with("the number of micro-batches", plan.micro_batches())
            .with_fingerprint("the plan", rows.collect::<Vec<_>>())
            .with_fingerprint("what is recomputed", format!("{:?}", program.retention()))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let lines = self.0.iter().map(|(name, value)| format!("{name}\t{value}\n"));
        lines.collect::<String>().into_bytes()
    }

    /// Compares what the ranks said.
    pub(crate) fn compare(said: &[Vec<u8>]) -> Result<(), StepError> {
        let texts: Vec<_> = said.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
        let most_lines = texts.iter().map(|text| text.lines().count()).max().unwrap_or_default();
        for line in 0..most_lines {
            let found: Vec<&str> =
                texts.iter().map(|text| text.lines().nth(line).unwrap_or_default()).collect();
            let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
            found.iter().for_each(|fact| *votes.entry(fact).or_default() += 1);
            let most = votes.values().copied().max().unwrap_or_default();
            // Where as many say one thing as another, the first rank is right.
            let Some(usual) = found.iter().find(|fact| votes[**fact] == most) else { continue };
            if let Some(rank) = found.iter().position(|fact| fact != usual) {
                let (what, value) = found[rank].split_once('\t').unwrap_or((found[rank], ""));
                let usual = usual.split_once('\t').map_or(*usual, |(_, value)| value);
                return Err(StepError::Disagreement {
                    rank: Rank::new(rank),
                    what: what.to_owned(),
                    found: value.to_owned(),
                    usual: usual.to_owned(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(said: &[&Agreement]) -> Result<(), String> {
        let said: Vec<_> = said.iter().map(|agreement| agreement.encode()).collect();
        Agreement::compare(&said).map_err(|error| error.to_string())
    }

    #[test]
    fn the_odd_one_out_is_named() {
        let usual = Agreement::new().with("the seed", 7).with_fingerprint("the model", [1, 2]);
        let other = Agreement::new().with("the seed", 7).with_fingerprint("the model", [1, 3]);
        let seeded = Agreement::new().with("the seed", 8).with_fingerprint("the model", [1, 3]);
        assert_eq!(compare(&[&usual, &usual, &usual]), Ok(()));
        let message = compare(&[&usual, &usual, &other]).expect_err("they differ");
        assert!(message.starts_with("rank 2 differs from the others in the model"), "{message}");
        let message = compare(&[&other, &usual, &usual]).expect_err("they differ");
        assert!(message.starts_with("rank 0 differs from the others in the model"), "{message}");
        let message = compare(&[&usual, &seeded]).expect_err("they differ");
        assert!(message.contains("rank 1 differs from the others in the seed: 8"), "{message}");
        assert!(message.contains("instead of 7"), "{message}");
        assert!(compare(&[&usual, &Agreement::new()]).is_err());
    }
}
