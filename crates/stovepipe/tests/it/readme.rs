//! The README's programs run, and stand here or in an example word for word.

use std::error::Error;

#[test]
#[expect(clippy::unwrap_used, reason = "as in the README")]
fn plans() -> Result<(), Box<dyn Error>> {
    use stovepipe_schedule::{
        CostModel, Edges, OneFOneB, Program, Retention, Schedule, Shape, simulate,
    };

    let plan = OneFOneB.plan(Shape::new(3, 4))?; // 3 ranks, 4 micro-batches
    println!("{plan}");

    let program = Program::lower(&plan, &Edges::chain(3), &Retention::keep_all(&plan))?;
    let timeline = simulate(&program, &CostModel::uniform(3, 1.0, 2.0))?; // forward 1, backward 2
    println!(
        "{} in all, {:.0}% of it idle",
        timeline.makespan(),
        100.0 * timeline.bubble().unwrap()
    );

    // What the README shows as their output.
    let shown = format!("{plan}\n18 in all, 33% of it idle\n");
    assert_eq!(timeline.makespan(), 18.0);
    assert_eq!((100.0 * timeline.bubble().ok_or("no time")?).round(), 33.0);
    assert!(README.contains(&shown));
    Ok(())
}

#[test]
fn cuts() -> Result<(), Box<dyn Error>> {
    use stovepipe_partition::{Costs, Minimax, Partitioner};

    let costs = Costs::new([13.0, 13.0, 19.0, 16.0])?;
    assert_eq!(Minimax.partition(&costs, 3)?.sizes(), [2, 1, 1]);
    Ok(())
}

const README: &str = include_str!("../../../../README.md");
/// The first program, which is an example that runs in a test of its own.
const QUICKSTART: &str = include_str!("../../../../examples/quickstart/quickstart.rs");

#[test]
fn every_program_of_the_readme_is_here() {
    // Except for the layout, which is rustfmt's here.
    let text = |text: &str| {
        let dense: String = text.split_whitespace().collect();
        dense.replace(",)", ")")
    };
    let here = text(include_str!("readme.rs"));
    let mut programs =
        README.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    assert_eq!(programs.next(), Some(QUICKSTART));
    assert_eq!(programs.clone().count(), 2);
    for program in programs {
        for part in program.split("\n\n") {
            assert!(here.contains(&text(part)), "not here:\n{part}");
        }
    }
}

#[test]
fn the_layer_of_the_readme_is_compiled_where_stovepipe_is_the_only_dependency() {
    const DOWNSTREAM: &str = include_str!("../downstream/my-training/src/lib.rs");
    let layer = QUICKSTART.find("#[derive(Module").zip(QUICKSTART.find("/// Sixteen"));
    let (start, end) = layer.expect("it is there");
    assert!(DOWNSTREAM.contains(&QUICKSTART[start..end]));
}
