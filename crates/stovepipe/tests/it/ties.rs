//! Tied parameters: one parameter in several layers, on whatever stages they are.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use stovepipe::burn::module::{Module, Param};
use stovepipe::burn::nn::{Embedding, EmbeddingConfig, Initializer, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::schedule::OneFOneB;
use stovepipe::transport::{Direction, InProcess, Tag, Transport, TransportError};
use stovepipe::{BuildError, Builder, LayerCosts, Packet};
use stovepipe_testkit::{
    Bits, CLASSES, DIM, LinearLayers, Tokens, batch, classifier, on_one_stage, on_ranks,
    parameter_bits, relative_difference, same_on_any_cut, train,
};

/// Logits by the embedding's own vectors.
#[derive(Module, Debug)]
struct Head {
    weight: Param<Tensor<2>>,
}

impl Head {
    fn new(device: &Device) -> Self {
        let uniform = Initializer::Uniform { min: -1.0, max: 1.0 };
        Self { weight: uniform.init([CLASSES, DIM], device) }
    }
}

impl Layer for Head {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
        x.matmul(self.weight.val().transpose().unsqueeze())
    }
}

fn embedding(device: &Device) -> Embedding {
    EmbeddingConfig::new(CLASSES, DIM).init(device)
}

fn body(model: Sequential<Tokens>) -> Sequential<Tokens, Tensor<3>> {
    model
        .push_module("embed", embedding, |m, x| m.forward(x))
        .linear("a", DIM, DIM)
        .linear("b", DIM, DIM)
        .push("head", Head::new)
}

fn tied() -> Sequential<Tokens, Tensor<3>> {
    body(Sequential::new()).tie(["embed.weight", "head.weight"])
}

#[test]
fn tied_parameters_are_the_same_bits_on_any_number_of_stages() {
    let plain = || classifier(tied());
    same_on_any_cut(plain, train);
    same_on_any_cut(|| plain().atomic_updates(true), train);
    same_on_any_cut(|| plain().clip_gradients(Clipping::Norm(0.05)), train);
    same_on_any_cut(plain, |mut pipeline| {
        let (a, b) = (batch(7, 0), batch(4, 1));
        pipeline.accumulate(a.0, a.1).expect("gradients");
        pipeline.step(b.0, b.1).expect("a step");
        parameter_bits(&mut pipeline)
    });
}

/// The whole model as one layer that uses its one embedding twice.
#[derive(Module, Debug)]
struct Whole {
    embed: Embedding,
    a: burn::nn::Linear,
    b: burn::nn::Linear,
}

impl Layer for Whole {
    type Input = Tokens;
    type Output = Tensor<3>;

    fn forward(&self, x: Tokens, _: &mut LayerContext<'_>) -> Tensor<3> {
        let x = self.b.forward(self.a.forward(self.embed.forward(x)));
        x.matmul(self.embed.weight.val().transpose().unsqueeze())
    }
}

#[test]
fn the_gradient_is_that_of_one_parameter_used_twice() {
    let sgd = |builder: Builder<Tokens, Tensor<3>, Tokens>| {
        builder.optimizer(SgdConfig::new().init()).learning_rate(0.5)
    };
    let apart = || sgd(Pipeline::builder(tied()).loss(CrossEntropy));
    let (x, y) = batch(7, 0);
    let mut pipeline = on_one_stage(apart());
    let start = pipeline.parameters().expect("parameters");
    // One logical parameter, under its first name.
    let names: Vec<&str> = start.keys().map(String::as_str).collect();
    assert_eq!(names, ["a.bias", "a.weight", "b.bias", "b.weight", "embed.weight"]);
    let found = pipeline.gradients(x.clone(), y.clone()).expect("gradients").gradients;
    assert!(found.keys().eq(start.keys()));

    let whole = Sequential::<Tokens>::new().push("whole", move |device| {
        let value = |name: &str| start[name].clone();
        let linear = |name: &str| {
            let mut linear = LinearConfig::new(DIM, DIM).init(device);
            let weight = value(&format!("{name}.weight"));
            linear.weight =
                linear.weight.map(|w| Tensor::from_data(weight, &w.device()).require_grad());
            let bias = value(&format!("{name}.bias"));
            linear.bias =
                linear.bias.map(|b| b.map(|b| Tensor::from_data(bias, &b.device()).require_grad()));
            linear
        };
        let mut embed = embedding(device);
        embed.weight = embed
            .weight
            .map(|w| Tensor::from_data(value("embed.weight"), &w.device()).require_grad());
        Whole { embed, a: linear("a"), b: linear("b") }
    });
    let mut whole = sgd(Pipeline::builder(whole).loss(CrossEntropy))
        .backend(Flex::new())
        .micro_batches(3)
        .build()
        .expect("a pipeline");
    let expected = whole.gradients(x.clone(), y.clone()).expect("gradients").gradients;
    let expected =
        expected.into_iter().map(|(name, data)| (name.replace("whole.", ""), data)).collect();
    let difference = relative_difference(&found, &expected);
    assert!(difference < 1e-5, "{difference}");

    // And the norm counts the parameter once.
    let squares = found.values().flat_map(|data| data.iter::<f64>().map(|v| v * v)).sum::<f64>();
    let clipped = || apart().clip_gradients(Clipping::Norm(1e9));
    let norm = on_one_stage(clipped()).step(x, y).expect("a step").gradient_norm.expect("measured");
    assert!((norm / squares.sqrt() - 1.0).abs() < 1e-6, "{norm}");
}

/// The round in which ranks gather the reports of their stages.
const REPORTS: u32 = 1;

/// Notes the shared gradients that a rank sends and the size of its largest report.
struct Noting {
    inner: InProcess<Packet>,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    shared: Vec<(usize, usize)>,
    gathered: usize,
}

#[async_trait]
impl Transport<Packet> for Noting {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    async fn send(&self, to: usize, tag: Tag, value: Packet) -> Result<(), TransportError> {
        if tag.direction == Direction::Shared {
            self.notes.lock().expect("no panic").shared.push((self.inner.rank(), to));
        }
        self.inner.send(to, tag, value).await
    }

    async fn recv(&self, from: usize, tag: Tag) -> Result<Packet, TransportError> {
        self.inner.recv(from, tag).await
    }

    async fn all_gather(
        &self,
        step: u64,
        round: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        if round == REPORTS {
            let mut notes = self.notes.lock().expect("no panic");
            notes.gathered = notes.gathered.max(bytes.len());
        }
        self.inner.all_gather(step, round, bytes).await
    }

    fn abort(&self, step: u64, reason: &str) {
        self.inner.abort(step, reason);
    }

    fn end_step(&self, step: u64) {
        self.inner.end_step(step);
    }
}

#[test]
fn their_gradients_go_between_their_owners_only() {
    let expected = train(on_one_stage(classifier(tied()).clip_gradients(Clipping::Norm(0.05))));
    let notes = Arc::new(Mutex::new(Notes::default()));
    let noted = Arc::clone(&notes);
    let trained = on_ranks(4, move |_, inner| {
        let builder = classifier(tied()).clip_gradients(Clipping::Norm(0.05));
        let builder = builder.backend(Flex::new()).stages(4).micro_batches(3);
        let builder = builder.schedule(OneFOneB).seed(11);
        let builder = builder.transport(Noting { inner, notes: Arc::clone(&noted) });
        train(builder.layer_costs(LayerCosts::Uniform).build().expect("a pipeline"))
    });
    assert!(trained.iter().all(|(losses, _)| *losses == expected.0));
    let parameters: Bits = trained.into_iter().flat_map(|(_, parameters)| parameters).collect();
    assert!(parameters == expected.1);
    let Notes { mut shared, gathered } = std::mem::take(&mut *notes.lock().expect("no panic"));
    let steps = expected.0.len();
    shared.sort_unstable();
    assert_eq!(shared, [vec![(0, 3); steps], vec![(3, 0); steps]].concat());
    // The tied parameter alone has more.
    assert!(gathered > 0 && gathered < size_of::<f32>() * CLASSES * DIM, "{gathered}");
}

#[test]
fn without_a_tie_they_drift_apart() {
    // What the tie is for: the test above would see it.
    let untied = || classifier(body(Sequential::new()));
    let parameters = on_one_stage(untied()).parameters().expect("parameters");
    assert_eq!(parameters.len(), 6);
    assert_ne!(parameters["embed.weight"].as_bytes(), parameters["head.weight"].as_bytes());
}

#[test]
fn ties_are_checked_when_the_model_is_built() {
    let refused = |paths: &[&str], more: &[&str]| {
        let mut model = body(Sequential::new()).tie(paths.iter().copied());
        if !more.is_empty() {
            model = model.tie(more.iter().copied());
        }
        let error = Pipeline::builder(model).backend(Flex::new()).build().map(drop);
        let error = error.expect_err("refused");
        assert!(matches!(error, BuildError::Tie { .. }));
        error.to_string()
    };
    let error = refused(&["embed.weight", "head.bias"], &[]);
    assert_eq!(error, "`head.bias` can't be tied: the model has no such parameter");
    let error = refused(&["embed.weight", "a.weight"], &[]);
    assert_eq!(
        error,
        "`a.weight` can't be tied: its shape is [8, 8], that of embed.weight [11, 8]"
    );
    let error = refused(&["embed.weight", "head.weight"], &["head.weight", "embed.weight"]);
    assert!(error.contains("it is tied twice"), "{error}");
}

#[test]
fn all_uses_train_or_none_does() {
    let frozen = |device: &Device| embedding(device).no_grad();
    let model = Sequential::<Tokens>::new()
        .push_module("embed", frozen, |m, x| m.forward(x))
        .linear("a", DIM, DIM)
        .push("head", Head::new)
        .tie(["embed.weight", "head.weight"]);
    let error = classifier(model).backend(Flex::new()).build().err().expect("refused").to_string();
    assert_eq!(
        error,
        "`head.weight` can't be tied: it trains, unlike embed.weight: freeze all or none"
    );
}
