//! The language model: embedding, causal pre-norm blocks, norm, head.

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use stovepipe::burn::tensor::activation::{gelu, softmax};
use stovepipe::burn::tensor::{Bool, Device, Int, Tensor};
use stovepipe::prelude::*;

use crate::arguments::Arguments;

/// A pipeline from character numbers to logits, compared with the next characters.
pub(crate) type LanguageModel = Pipeline<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;
/// The builder of a [`LanguageModel`].
pub(crate) type LanguageModelBuilder =
    stovepipe::Builder<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

/// From character numbers `[batch, seq]` to logits `[batch, seq, vocabulary]`.
pub(crate) fn language_model(
    vocabulary: usize,
    arguments: &Arguments,
) -> Sequential<Tensor<2, Int>, Tensor<3>> {
    let Arguments { dim, heads, seq, layers, .. } = *arguments;
    Sequential::<Tensor<2, Int>>::new()
        .push("embed", move |device| Embed::new(vocabulary, seq, dim, device))
        .repeat("blocks", layers, move |device| Block::new(dim, heads, device))
        .push_module(
            "norm",
            move |device| LayerNormConfig::new(dim).init(device),
            |m, x: Tensor<3>| m.forward(x),
        )
        .push_module(
            "head",
            move |device| LinearConfig::new(dim, vocabulary).init(device),
            |m, x: Tensor<3>| m.forward(x),
        )
}

/// The sum of what a character and its place are embedded as.
#[derive(Module, Debug)]
struct Embed {
    character: Embedding,
    place: Embedding,
}

impl Embed {
    fn new(vocabulary: usize, seq: usize, dim: usize, device: &Device) -> Self {
        let small = Initializer::Normal { mean: 0.0, std: 0.02 };
        let embedding =
            |count| EmbeddingConfig::new(count, dim).with_initializer(small.clone()).init(device);
        Self { character: embedding(vocabulary), place: embedding(seq) }
    }
}

impl Layer for Embed {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn forward(&self, ids: Tensor<2, Int>, _: &mut LayerContext<'_>) -> Tensor<3> {
        let [_, seq] = ids.dims();
        let places = Tensor::<1, Int>::arange(0..seq as i64, &ids.device()).unsqueeze::<2>();
        self.character.forward(ids) + self.place.forward(places)
    }
}

/// A pre-norm Transformer block whose attention looks back only.
#[derive(Module, Debug)]
struct Block {
    norm_attention: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    norm_mlp: LayerNorm,
    up: Linear,
    down: Linear,
    #[module(skip)]
    heads: usize,
}

impl Block {
    fn new(dim: usize, heads: usize, device: &Device) -> Self {
        let norm = || LayerNormConfig::new(dim).init(device);
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            norm_attention: norm(),
            query: linear(dim, dim),
            key: linear(dim, dim),
            value: linear(dim, dim),
            out: linear(dim, dim),
            norm_mlp: norm(),
            up: linear(dim, 4 * dim),
            down: linear(4 * dim, dim),
            heads,
        }
    }

    fn attention(&self, x: Tensor<3>, context: &LayerContext<'_>) -> Tensor<3> {
        let [batch, seq, dim] = x.dims();
        let width = dim / self.heads;
        let split = |x: Tensor<3>| x.reshape([batch, seq, self.heads, width]).swap_dims(1, 2);
        let query = split(context.linear(&self.query, x.clone()));
        let key = split(context.linear(&self.key, x.clone()));
        let value = split(context.linear(&self.value, x));
        let scores = query.matmul(key.swap_dims(2, 3)).div_scalar((width as f64).sqrt());
        let ahead = Tensor::<2, Bool>::tril_mask([seq, seq], 0, &scores.device());
        let scores = scores.mask_fill(
            ahead.unsqueeze::<4>().expand([batch, self.heads, seq, seq]),
            f32::NEG_INFINITY,
        );
        let mixed = softmax(scores, 3).matmul(value);
        context.linear(&self.out, mixed.swap_dims(1, 2).reshape([batch, seq, dim]))
    }
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
        let x = x.clone() + self.attention(self.norm_attention.forward(x), context);
        let hidden = gelu(context.linear(&self.up, self.norm_mlp.forward(x.clone())));
        x + context.linear(&self.down, hidden)
    }
}
