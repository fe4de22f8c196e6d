//! The schedules of the field, one in each file, and where they are found by name.

mod dualpipe_v;
mod forward_only;
mod gpipe;
mod interleaved;
mod looped_bfs;
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
pub use one_f_one_b::OneFOneB;
pub use schedule::Schedule;
pub use zb_h1::ZbH1;
pub use zb_v::ZbV;

use crate::words::error::PlanError;

/// Every schedule of this crate, in each of its variants.
#[must_use]
pub fn schedules() -> Vec<Box<dyn Schedule>> {
    vec![
        Box::new(GPipe::new(Drain::Reverse)),
        Box::new(GPipe::new(Drain::Forward)),
        Box::new(OneFOneB),
        Box::new(Interleaved1F1B),
        Box::new(LoopedBfs::new(Drain::Reverse)),
        Box::new(LoopedBfs::new(Drain::Forward)),
        Box::new(ZbH1),
        Box::new(ZbV),
        Box::new(DualPipeV),
        Box::new(ForwardOnly),
    ]
}

/// The schedule of this name.
///
/// # Errors
///
/// [`PlanError::UnknownSchedule`] lists the names there are.
pub fn schedule_named(name: &str) -> Result<Box<dyn Schedule>, PlanError> {
    schedules().into_iter().find(|schedule| schedule.name() == name).ok_or_else(|| {
        let known = schedules().iter().map(|s| s.name().to_owned()).collect::<Vec<_>>().join(", ");
        PlanError::UnknownSchedule { name: name.chars().take(40).collect(), known }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_found_by_their_names() {
        for schedule in schedules() {
            let found = schedule_named(schedule.name()).expect("it is listed");
            assert_eq!(found.name(), schedule.name());
        }
        let error = schedule_named("pipedream").err().expect("unknown").to_string();
        assert!(error.contains("`pipedream`") && error.contains("interleaved-1f1b"), "{error}");
    }
}
