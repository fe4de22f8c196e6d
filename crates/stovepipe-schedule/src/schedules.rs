//! The schedules of the field, one in each file, and where they are found by name.

mod dualpipe_v;
mod forward_only;
mod gpipe;
mod interleaved;
mod looped_bfs;
mod named;
mod one_f_one_b;
mod row;
mod schedule;
mod zb_h1;
mod zb_v;

pub use dualpipe_v::DualPipeV;
pub use forward_only::ForwardOnly;
pub use gpipe::{Drain, GPipe};
pub use interleaved::Interleaved1F1B;
pub use looped_bfs::LoopedBfs;
pub use named::NamedSchedule;
pub use one_f_one_b::OneFOneB;
pub use schedule::Schedule;
pub use zb_h1::ZbH1;
pub use zb_v::ZbV;

use crate::words::error::PlanError;

/// Every schedule of this crate, in each of its variants.
#[must_use]
pub fn schedules() -> &'static [NamedSchedule] {
    &[
        gpipe::REVERSE,
        gpipe::FORWARD,
        one_f_one_b::NAMED,
        interleaved::NAMED,
        looped_bfs::REVERSE,
        looped_bfs::FORWARD,
        zb_h1::NAMED,
        zb_v::NAMED,
        dualpipe_v::NAMED,
        forward_only::NAMED,
    ]
}

/// The schedule of this name.
///
/// # Errors
///
/// [`PlanError::UnknownSchedule`] lists the names there are.
pub fn schedule_named(name: &str) -> Result<Box<dyn Schedule>, PlanError> {
    let named = schedules().iter().find(|named| named.name == name);
    named.map(NamedSchedule::make).ok_or_else(|| PlanError::UnknownSchedule {
        name: name.chars().take(40).collect(),
        known: schedules().iter().map(|named| named.name).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_found_by_their_names() {
        for named in schedules() {
            let found = schedule_named(named.name).expect("it is listed");
            assert_eq!(found.name(), named.name);
            assert!(named.summary.ends_with('.'), "{}", named.name);
        }
        let error = schedule_named("pipedream").err().expect("unknown").to_string();
        assert!(error.contains("`pipedream`") && error.contains("interleaved-1f1b"), "{error}");
    }
}
