//! Plans with one random change: refused, or still right by the judgement of a checker that shares
//! no code with the library.

use std::collections::HashMap;

use proptest::prelude::*;
use stovepipe_schedule::{
    Compute, ComputeKind, MicroBatch, Plan, Schedule, Shape, Stage, schedules,
};

/// Whether the rows are a plan, by counting and by trying.
fn is_right(rows: &[Vec<Compute>]) -> bool {
    let letter = |a: &Compute| a.kind.letter();
    let all: Vec<(usize, usize, char, usize, usize)> = rows
        .iter()
        .enumerate()
        .flat_map(|(rank, row)| row.iter().enumerate().map(move |(at, a)| (rank, at, a)))
        .map(|(rank, at, a)| (rank, at, letter(a), a.stage.index(), a.micro_batch.index()))
        .collect();
    if rows.is_empty() || rows.iter().any(Vec::is_empty) {
        return false;
    }
    let stages = all.iter().map(|a| a.3).max().map_or(0, |s| s + 1);
    let micro_batches = all.iter().map(|a| a.4).max().map_or(0, |m| m + 1);
    if stages * micro_batches > all.len() {
        return false;
    }
    let trains = all.iter().any(|a| "BIW".contains(a.2));
    let at = |kind: char, s: usize, m: usize| -> Vec<(usize, usize)> {
        all.iter().filter(|a| (a.2, a.3, a.4) == (kind, s, m)).map(|a| (a.0, a.1)).collect()
    };
    for s in 0..stages {
        let mut ranks: Vec<usize> = all.iter().filter(|a| a.3 == s).map(|a| a.0).collect();
        ranks.dedup();
        if ranks.len() != 1 {
            return false;
        }
        for m in 0..micro_batches {
            let [f, r, b, i, w] = ['F', 'R', 'B', 'I', 'W'].map(|kind| at(kind, s, m));
            let split = match (trains, f.len(), r.len(), b.len(), i.len(), w.len()) {
                (false, 1, 0, 0, 0, 0) | (true, 1, 0 | 1, 1, 0, 0) => false,
                (true, 1, 0 | 1, 0, 1, 1) => true,
                _ => return false,
            };
            let order = if split { [&f, &r, &i, &w] } else { [&f, &r, &b, &w] };
            let places: Vec<usize> = order.iter().filter_map(|p| p.first()).map(|p| p.1).collect();
            if !places.is_sorted() {
                return false;
            }
        }
    }
    // Try: run whatever can run until nothing can.
    let mut done: HashMap<(char, usize, usize), bool> = HashMap::new();
    let mut next = vec![0; rows.len()];
    loop {
        let mut moved = false;
        for (rank, row) in rows.iter().enumerate() {
            let Some(a) = row.get(next[rank]) else { continue };
            let (s, m) = (a.stage.index(), a.micro_batch.index());
            let ready = match letter(a) {
                'F' => s == 0 || done.contains_key(&('F', s - 1, m)),
                'B' | 'I' => s + 1 == stages || done.contains_key(&('B', s + 1, m)),
                _ => true,
            };
            if ready {
                let kind = if letter(a) == 'I' { 'B' } else { letter(a) };
                done.insert((kind, s, m), true);
                next[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            return next.iter().zip(rows).all(|(next, row)| *next == row.len());
        }
    }
}

/// A change of one plan.
#[derive(Clone, Debug)]
enum Mutation {
    Drop,
    Double,
    Swap,
    Move,
    OtherStage(usize),
    OtherMicroBatch(usize),
    OtherKind(usize),
}

fn mutations() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        Just(Mutation::Drop),
        Just(Mutation::Double),
        Just(Mutation::Swap),
        Just(Mutation::Move),
        (0usize..9).prop_map(Mutation::OtherStage),
        (0usize..9).prop_map(Mutation::OtherMicroBatch),
        (0usize..5).prop_map(Mutation::OtherKind),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_mutated_plan_is_refused_unless_it_is_right(
        which in 0usize..10, ranks in 1usize..=3, m in 1usize..=6,
        mutation in mutations(),
        rank in any::<prop::sample::Index>(), here in any::<prop::sample::Index>(),
        there in any::<prop::sample::Index>(),
    ) {
        let schedule = &schedules()[which].make();
        let shape = Shape::new(ranks, m).with_stages_per_rank(schedule.default_stages_per_rank());
        let Ok(plan) = schedule.plan(shape) else { return Ok(()) };
        let mut rows = plan.rows().to_vec();
        prop_assert!(is_right(&rows), "the checker refuses {} for {shape}", schedule.name());
        let rank = rank.index(rows.len());
        let (here, there) = (here.index(rows[rank].len()), there.index(rows[rank].len()));
        match mutation {
            Mutation::Drop => drop(rows[rank].remove(here)),
            Mutation::Double => {
                let action = rows[rank][here];
                rows[rank].insert(there, action);
            }
            Mutation::Swap => rows[rank].swap(here, there),
            Mutation::Move => {
                let action = rows[rank].remove(here);
                let other = (rank + 1) % rows.len();
                let place = there.min(rows[other].len());
                rows[other].insert(place, action);
            }
            Mutation::OtherStage(stage) => rows[rank][here].stage = Stage::new(stage),
            Mutation::OtherMicroBatch(m) => rows[rank][here].micro_batch = MicroBatch::new(m),
            Mutation::OtherKind(kind) => rows[rank][here].kind = ComputeKind::ALL[kind],
        }
        prop_assert_eq!(Plan::new(rows.clone()).is_ok(), is_right(&rows), "{:?}", rows);
    }
}
