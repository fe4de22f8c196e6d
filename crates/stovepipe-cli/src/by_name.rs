//! Arguments that name a schedule, a checkpoint policy or a partitioner: what they take and their
//! help come from the list of each.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use stovepipe_checkpoint::{PolicyError, PolicyFacts, policies, policy_named};
use stovepipe_partition::{PartitionerFacts, partitioner_named, partitioners};
use stovepipe_schedule::{schedule_named, schedules};

/// Takes what can be made from its text.
#[derive(Clone)]
pub(crate) struct ByName {
    /// Forms and their help.
    values: Vec<(&'static str, &'static str)>,
    check: fn(&str) -> Result<(), String>,
}

impl ByName {
    /// One of the schedules.
    pub(crate) fn schedule() -> Self {
        Self {
            values: schedules().iter().map(|named| (named.name, named.summary)).collect(),
            check: |text| schedule_named(text).map(drop).map_err(|error| error.to_string()),
        }
    }

    /// One of the checkpoint policies, with its argument. Facts that it needs are looked for later.
    pub(crate) fn policy() -> Self {
        Self {
            values: policies().iter().map(|named| (named.form, named.summary)).collect(),
            check: |text| match policy_named(text, &PolicyFacts::default()) {
                Ok(_) | Err(PolicyError::MissingFact { .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    /// One of the partitioners, with its argument.
    pub(crate) fn partitioner() -> Self {
        Self {
            values: partitioners().iter().map(|named| (named.form, named.summary)).collect(),
            check: |text| {
                let made = partitioner_named(text, &PartitionerFacts::default());
                made.map(drop).map_err(|error| error.to_string())
            },
        }
    }
}

impl TypedValueParser for ByName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        let text = StringValueParser::new().parse_ref(command, argument, value)?;
        (self.check)(&text).map_err(|reason| {
            let place = argument.map_or(String::new(), |argument| format!("{argument}: "));
            Error::raw(ErrorKind::InvalidValue, format!("{place}{reason}\n"))
        })?;
        Ok(text)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = self.values.iter();
        Some(Box::new(values.map(|(form, summary)| PossibleValue::new(*form).help(*summary))))
    }
}
