//! The README's programs run, and stand here word for word.

use std::error::Error;

use stovepipe::burn;
use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{LayerNorm, LayerNormConfig, Linear};
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::burn::tensor::{Device, TensorData};

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

mod first {
    use stovepipe::burn::nn::{EmbeddingConfig, LinearConfig};
    use stovepipe::burn::optim::AdamConfig;
    use stovepipe::burn::tensor::{Int, Tensor};
    use stovepipe::prelude::*;

    use super::*;

    impl Block {
        fn new(dim: usize, device: &Device) -> Self {
            Self {
                norm: LayerNormConfig::new(dim).init(device),
                up: LinearConfig::new(dim, 4 * dim).init(device),
                down: LinearConfig::new(4 * dim, dim).init(device),
            }
        }
    }

    impl Layer for Block {
        type Input = Tensor<3>;
        type Output = Tensor<3>;

        fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
            x.clone() + self.down.forward(gelu(self.up.forward(self.norm.forward(x))))
        }
    }

    #[test]
    fn trains() -> Result<(), Box<dyn Error>> {
        let ids: Vec<i32> = (0..64).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [8, 8]), &Device::flex());
        let training = vec![(ids.clone(), ids.clone()); 3];
        let validation = (ids.clone(), ids);

        let model = Sequential::<Tensor<2, Int>>::new()
            .push_module(
                "embed",
                |d| EmbeddingConfig::new(96, 128).init(d),
                |m, ids| m.forward(ids),
            )
            .repeat("blocks", 8, |d| Block::new(128, d)) // your own layers
            .push_module(
                "head",
                |d| LinearConfig::new(128, 96).init(d),
                |m, x: Tensor<3>| m.forward(x),
            );

        let mut pipeline = Pipeline::builder(model)
            .backend(Flex::new())
            .stages(2)
            .micro_batches(8)
            .schedule(schedule::OneFOneB)
            .checkpoint(recompute::ExceptLast)
            .partitioner(partition::Minimax)
            .optimizer(AdamConfig::new().init())
            .learning_rate(1e-3)
            .loss(CrossEntropy)
            .build()?;

        for (input, target) in training {
            let step = pipeline.step(input, target)?;
            println!("loss {:.3}", step.loss);
        }
        let (input, target) = validation;
        println!("validation loss {:.3}", pipeline.evaluate(input, target)?.loss);
        Ok(())
    }
}

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

const README: &str = include_str!("../../../README.md");

#[test]
fn every_program_of_the_readme_is_here() {
    // But for its layout, which is rustfmt's here.
    let text = |text: &str| {
        let dense: String = text.split_whitespace().collect();
        dense.replace(",)", ")")
    };
    let here = text(include_str!("readme.rs"));
    let programs: Vec<&str> = README.split("```rust\n").skip(1).collect();
    assert_eq!(programs.len(), 4);
    for program in programs {
        let program = program.split("```").next().unwrap_or_default();
        for part in program.split("\n\n") {
            assert!(here.contains(&text(part)), "not here:\n{part}");
        }
    }
}
