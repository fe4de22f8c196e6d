//! A character-level Transformer language model, trained on text, split over pipeline stages.
//!
//! `cargo run --release --example char-lm -- --help` lists what can be changed.

mod arguments;
mod corpus;
mod model;
mod report;
mod tune;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use arguments::{Arguments, Transport};
use clap::Parser;
use corpus::Corpus;
use indicatif::{ProgressBar, ProgressStyle};
use model::{LanguageModel, LanguageModelBuilder};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use report::{Point, Run};
use stovepipe::burn::optim::AdamConfig;
use stovepipe::burn::tensor::{Int, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::{PolicyError, PolicyFacts};

/// How much text is sampled at the end, in characters.
const SAMPLE: usize = 300;
/// How many batches the validation loss is averaged over.
const VALIDATION_BATCHES: usize = 4;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let corpus = Corpus::read(arguments.text.as_deref())?;
    ensure!(
        corpus.is_enough_for(arguments.seq),
        "the text has {} characters, too few for sequences of {}: use more text or a smaller --seq",
        corpus.len(),
        arguments.seq
    );
    ensure!(
        arguments.dim.is_multiple_of(arguments.heads),
        "--dim {} can't be divided among {} heads",
        arguments.dim,
        arguments.heads
    );
    let mut builder = configure(&arguments, &corpus)?;
    if arguments.tune || arguments.profile.is_some() {
        let profile = tune::measure(&builder, &arguments, &corpus)?;
        if let Some(path) = &arguments.profile {
            tune::write(&profile, path)?;
        }
        if !arguments.tune {
            return Ok(());
        }
        builder = builder.tune(&tune::choose(&profile, &arguments)?);
    }
    let mut pipeline = builder.build()?;
    // All processes do the same with the same batches, and know the same losses.
    let speaks = pipeline.process() == 0;
    if speaks {
        describe(&pipeline, &corpus);
    }

    let mut rng = StdRng::seed_from_u64(arguments.seed);
    let validation: Vec<_> = (0..VALIDATION_BATCHES)
        .map(|_| corpus.validation(&mut rng, arguments.batch, arguments.seq))
        .collect();
    let mut run = Run::new(corpus.unigram_entropy());
    let bar = if speaks { progress_bar(arguments.steps) } else { ProgressBar::hidden() };
    let start = Instant::now();
    for step in 1..=arguments.steps {
        let (input, target) = corpus.training(&mut rng, arguments.batch, arguments.seq);
        let done = pipeline.step(input, target).with_context(|| format!("training step {step}"))?;
        run.trained(step, done);
        let tokens = (step * arguments.batch * arguments.seq) as f64;
        let speed = tokens / start.elapsed().as_secs_f64();
        bar.set_message(format!("loss {:.3}, {speed:.0} tokens/s", run.last_loss()));
        bar.inc(1);
        if step % arguments.validate_every() == 0 || step == arguments.steps {
            let loss = validate(&mut pipeline, &validation)?;
            run.validated(Point { step, loss });
            if speaks {
                bar.suspend(|| {
                    println!(
                        "step {step:5}: training loss {:.3}, validation loss {loss:.3}, \
                         {speed:.0} tokens/s",
                        run.last_loss()
                    );
                });
            }
        }
    }
    bar.finish_and_clear();
    let seconds = start.elapsed();
    run.gather(&mut pipeline)?;
    if speaks {
        run.finish(&mut pipeline, &arguments, seconds)?;
    }
    let text = sample(&mut pipeline, &corpus, arguments.seq, &mut rng)?;
    if speaks {
        println!("\nA sample:\n\n{text}");
    }
    Ok(())
}

fn configure(arguments: &Arguments, corpus: &Corpus) -> Result<LanguageModelBuilder> {
    let model = model::language_model(corpus.vocabulary(), arguments);
    let builder = Pipeline::builder(model)
        .backend(arguments.backend()?)
        .stages(arguments.stages)
        .micro_batches(arguments.micro_batches)
        .schedule(arguments.schedule()?)
        .partitioner(arguments.partitioner()?)
        .optimizer(AdamConfig::new().init())
        .learning_rate(arguments.lr)
        .loss(CrossEntropy)
        .seed(arguments.seed);
    let builder = match arguments.checkpoint(&PolicyFacts::default()) {
        Err(PolicyError::MissingFact { .. }) if arguments.transport == Transport::Threads => {
            let facts = tune::facts(&builder, arguments, corpus)?;
            builder.checkpoint(arguments.checkpoint(&facts)?)
        }
        policy => builder.checkpoint(policy?),
    };
    match arguments.transport {
        Transport::Threads => Ok(builder),
        Transport::Mpi => over_mpi(builder),
    }
}

#[cfg(feature = "mpi")]
fn over_mpi(builder: LanguageModelBuilder) -> Result<LanguageModelBuilder> {
    Ok(builder.transport(Mpi::world()?))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_: LanguageModelBuilder) -> Result<LanguageModelBuilder> {
    anyhow::bail!("this program was built without MPI: build it with `--features mpi`")
}

fn describe(pipeline: &LanguageModel, corpus: &Corpus) {
    println!(
        "{} characters of text, {} different ones; unigram entropy {:.3} nats",
        corpus.len(),
        corpus.vocabulary(),
        corpus.unigram_entropy()
    );
    for stage in pipeline.stages() {
        println!(
            "stage {} on rank {}, {}: {} ({} parameters)",
            stage.stage,
            stage.rank,
            stage.device,
            stage.layers.join(", "),
            stage.parameters
        );
    }
    for shared in pipeline.shared_devices() {
        println!("{} ranks share {}", shared.ranks.len(), shared.device);
    }
}

fn progress_bar(steps: usize) -> ProgressBar {
    let template = "{bar:30} {pos}/{len} {msg}, {eta} left";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64).with_style(style)
}

fn validate(
    pipeline: &mut LanguageModel,
    batches: &[(Tensor<2, Int>, Tensor<2, Int>)],
) -> Result<f64> {
    let mut sum = 0.0;
    for (input, target) in batches {
        sum += pipeline.evaluate(input.clone(), target.clone())?.loss;
    }
    Ok(sum / batches.len() as f64)
}

/// Continues a piece of the validation text, character by character.
fn sample(
    pipeline: &mut LanguageModel,
    corpus: &Corpus,
    seq: usize,
    rng: &mut StdRng,
) -> Result<String> {
    const TEMPERATURE: f32 = 0.8;
    let mut ids = corpus.prompt(seq);
    let prompt = ids.len();
    for _ in 0..SAMPLE {
        let context = &ids[ids.len() - seq..];
        let logits = pipeline.predict(corpus::tensor(context, 1, seq))?;
        let last = logits.narrow(1, seq - 1, 1).to_data();
        let logits: Vec<f32> = last.iter::<f32>().collect();
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> =
            logits.iter().map(|l| ((l - highest) / TEMPERATURE).exp()).collect();
        let mut left = rng.random::<f32>() * weights.iter().sum::<f32>();
        let drawn = weights.iter().position(|w| {
            left -= w;
            left <= 0.0
        });
        ids.push(drawn.unwrap_or(0) as i32);
    }
    Ok(format!("{}|{}", corpus.text(&ids[..prompt]), corpus.text(&ids[prompt..])))
}
