//! Emulated pipelines run the program that they are given, and wait as long as it costs.

use stovepipe_emulate::{Emulation, EmulationError};
use stovepipe_schedule::{
    CostModel, Edges, Mode, NamedSchedule, OneFOneB, Program, Retention, Schedule, Shape,
    StageCost, StageRetention, schedules, simulate,
};

fn program(schedule: &dyn Schedule, ranks: usize, drops: bool) -> Option<Program> {
    let shape = Shape::new(ranks, 4).with_stages_per_rank(schedule.default_stages_per_rank());
    let plan = schedule.plan(shape).ok().filter(|plan| plan.mode() == Mode::Training)?;
    let dropped = StageRetention::drop_all(usize::from(drops));
    let retention = Retention::from_fn(&plan, |_, _| dropped.clone());
    let edges = Edges::chain(plan.stages());
    Some(Program::lower(&plan, &edges, &retention).expect("lowers"))
}

#[test]
fn every_schedule_runs_and_waits_as_long_as_it_costs() {
    for schedule in schedules().iter().map(NamedSchedule::make) {
        for drops in [false, true] {
            let Some(program) = program(&*schedule, 2, drops) else { continue };
            let stages = program.plan().stages();
            let costs = vec![StageCost { update: 1e-3, ..StageCost::new(5e-4, 1e-3) }; stages];
            let costs = CostModel::new(costs);
            let expected = simulate(&program, &costs).expect("simulates");
            let mut emulation = Emulation::start(&program, &costs, 16).expect("starts");
            for _ in 0..2 {
                let timeline = emulation.step().expect("runs");
                for rank in 0..timeline.ranks() {
                    let actions = timeline.spans(rank).iter().map(|span| span.action);
                    assert!(actions.eq(program.row(rank).to_vec()), "{}", schedule.name());
                }
                assert!(timeline.makespan() >= expected.makespan(), "{}", schedule.name());
            }
        }
    }
}

#[test]
fn costs_that_cannot_be_are_refused() {
    let program = program(&OneFOneB, 2, false).expect("a program");
    for costs in [CostModel::uniform(3, 1.0, 1.0), CostModel::uniform(2, f64::NAN, 1.0)] {
        let refused = Emulation::start(&program, &costs, 0).err();
        assert!(matches!(refused, Some(EmulationError::Costs(_))));
    }
}
