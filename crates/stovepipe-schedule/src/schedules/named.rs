//! The entry of a schedule in the registry: a name, a sentence, and a function that makes it. Each
//! schedule's file holds its own entry; the list of them stands in the folder's file.

use crate::schedules::schedule::Schedule;

/// A schedule that is asked for by its name.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NamedSchedule {
    /// The name, as [`schedule_named`](crate::schedule_named) takes it.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// Whether a tuner tries it when nobody says which.
    pub tuned: bool,
    pub(crate) make: fn() -> Box<dyn Schedule>,
}

impl NamedSchedule {
    /// The schedule.
    #[must_use]
    pub fn make(&self) -> Box<dyn Schedule> {
        (self.make)()
    }
}
