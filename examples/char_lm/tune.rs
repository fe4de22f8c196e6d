//! Measuring the layers, and choosing how to run them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use peak_alloc::PeakAlloc;
use rand::SeedableRng;
use rand::rngs::StdRng;
use stovepipe::Profiling;
use stovepipe::recompute::PolicyFacts;
use stovepipe::tune::{Choice, Cluster, Profile, Report, Tuner};

use crate::arguments::Arguments;
use crate::corpus::Corpus;
use crate::model::{LanguageModelBuilder, language_model};

/// Counts the bytes that are allocated, to know what layers keep.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// How many of the best choices are shown.
const SHOWN: usize = 8;

/// Measures every layer at powers of two as sizes, the other ranks busy meanwhile.
pub(crate) fn measure(
    builder: &LanguageModelBuilder,
    arguments: &Arguments,
    corpus: &Corpus,
) -> Result<Profile> {
    ensure!(arguments.stages > 0, "--stages is 0: give at least 1");
    let mut sizes: Vec<usize> = std::iter::successors(Some(1), |size| Some(2 * size))
        .take_while(|&size| size < arguments.batch)
        .collect();
    sizes.push(arguments.batch);
    let layers = language_model(corpus.vocabulary(), arguments).len();
    let bar = ProgressBar::new(layers as u64);
    let style = ProgressStyle::with_template("measuring {msg} {bar:30} {pos}/{len}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let shown = bar.clone();
    let profiling = Profiling::new(sizes)
        .together(layers.div_ceil(arguments.stages))
        .busy_ranks(arguments.stages - 1)
        .memory(PeakAlloc)
        .progress(move |layer, number, _| {
            shown.set_position(number as u64);
            shown.set_message(layer.to_owned());
        });
    let mut rng = StdRng::seed_from_u64(arguments.seed);
    let (input, target) = corpus.validation(&mut rng, arguments.batch, arguments.seq);
    let profile = builder.profile(&profiling, input, target)?;
    bar.finish_and_clear();
    Ok(profile)
}

/// Measures what checkpoint policies may want to know of the layers.
pub(crate) fn facts(
    builder: &LanguageModelBuilder,
    arguments: &Arguments,
    corpus: &Corpus,
) -> Result<PolicyFacts> {
    let profile = measure(builder, arguments, corpus)?;
    let samples = arguments.batch.div_ceil(arguments.micro_batches.max(1));
    Ok(PolicyFacts::default().with_layers(profile.activations(samples)?))
}

/// Writes the profile.
pub(crate) fn write(profile: &Profile, path: &Path) -> Result<()> {
    std::fs::write(path, profile.to_json()?)
        .with_context(|| format!("{} can't be written", path.display()))?;
    println!("the profile is in {}", path.display());
    Ok(())
}

/// Chooses, and prints the choice among its rivals.
pub(crate) fn choose(profile: &Profile, arguments: &Arguments) -> Result<Choice> {
    let cluster = Cluster::new(arguments.stages);
    let report = Tuner::new(profile, &cluster).batch(arguments.batch).tune()?;
    println!("{}", table(&report));
    println!("chosen: {}\n", report.best().configuration);
    Ok(report.best().clone())
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.set_header([
        "schedule",
        "ranks",
        "micro-batches",
        "recomputation",
        "layers",
        "step",
        "slower",
        "bubble",
        "most memory",
    ]);
    for choice in report.choices.iter().take(SHOWN) {
        let configuration = &choice.configuration;
        table.add_row([
            configuration.schedule.name().to_owned(),
            configuration.ranks.to_string(),
            configuration.micro_batches.to_string(),
            configuration.policy.name().to_owned(),
            choice.partition.to_string(),
            format!("{:.1} ms", 1e3 * choice.seconds),
            format!("{:.1}%", 100.0 * report.slower(choice)),
            format!("{:.1}%", 100.0 * choice.bubble),
            choice.most_memory().map_or("unknown".to_owned(), |n| ByteSize(n).to_string()),
        ]);
    }
    table
}
