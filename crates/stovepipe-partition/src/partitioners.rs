//! The partitioners, one in each file, and where they are found by name.

mod constrained_minimax;
mod explicit;
mod minimax;
mod uniform;

pub use constrained_minimax::{ConstrainedMinimax, Loads, Solution};
pub use explicit::Explicit;
pub use minimax::Minimax;
pub use uniform::Uniform;

use crate::error::PartitionError;
use crate::named::{NamedPartitioner, PartitionerFacts};
use crate::partitioner::Partitioner;

/// Every partitioner of this crate.
#[must_use]
pub fn partitioners() -> &'static [NamedPartitioner] {
    &[minimax::NAMED, constrained_minimax::NAMED, uniform::NAMED, explicit::NAMED]
}

/// The partitioner of this name, with its argument behind a `=` if it takes one.
///
/// ```
/// use stovepipe_partition::{Partitioner, PartitionerFacts, partitioner_named};
///
/// let facts = PartitionerFacts::default();
/// assert_eq!(partitioner_named("uniform", &facts)?.name(), "uniform");
/// assert_eq!(partitioner_named("explicit=4,2", &facts)?.name(), "explicit");
/// assert!(partitioner_named("explicit", &facts).is_err());
/// # Ok::<(), stovepipe_partition::PartitionError>(())
/// ```
///
/// # Errors
///
/// [`PartitionError::UnknownPartitioner`] lists the names there are, [`PartitionError::Argument`]
/// says what to write.
pub fn partitioner_named(
    text: &str,
    facts: &PartitionerFacts,
) -> Result<Box<dyn Partitioner>, PartitionError> {
    let (name, argument) = match text.split_once('=') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let named = partitioners().iter().find(|named| named.name == name);
    let named = named.ok_or_else(|| PartitionError::UnknownPartitioner {
        name: name.chars().take(40).collect(),
        known: partitioners().iter().map(|named| named.form).collect::<Vec<_>>().join(", "),
    })?;
    named.make(argument, facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitioners_are_found_by_their_names() {
        for named in partitioners() {
            let found = partitioner_named(named.example, &PartitionerFacts::default());
            assert_eq!(found.expect("it is listed").name(), named.name);
            let (prefix, _) = named.form.split_once('=').unwrap_or((named.form, ""));
            assert_eq!(prefix, named.name);
            assert!(named.summary.ends_with('.'), "{}", named.name);
            assert!(!(named.tuned && named.takes_argument()), "{}", named.name);
        }
    }

    #[test]
    fn facts_constrain() {
        let facts = PartitionerFacts::default().with_speeds([1.0, 2.0]);
        let costs = crate::Costs::uniform(9).expect("costs");
        let cut = |name| {
            let partitioner = partitioner_named(name, &facts).expect("it is listed");
            partitioner.partition(&costs, 2).expect("a partition").sizes()
        };
        assert_eq!(cut("constrained-minimax"), [3, 6]);
        assert_eq!(cut("minimax"), [4, 5]);
        let facts = facts.with_pin(4, 0).with_group(4..8);
        let partitioner = partitioner_named("constrained-minimax", &facts).expect("it is listed");
        assert_eq!(partitioner.partition(&costs, 2).expect("a partition").sizes(), [8, 1]);
    }

    #[test]
    fn names_and_arguments_that_cannot_be_used_are_refused_with_advice() {
        for (text, advice) in [
            ("best", "use one of minimax, constrained-minimax, uniform, explicit=N,…"),
            ("explicit", "write it like `explicit=4,2`"),
            ("explicit=4,x", "write it like `explicit=4,2`"),
            ("minimax=2", "write it like `minimax`"),
        ] {
            let error = partitioner_named(text, &PartitionerFacts::default()).err();
            let error = error.expect("refused").to_string();
            assert!(error.contains(advice), "{text}: {error}");
        }
    }
}
