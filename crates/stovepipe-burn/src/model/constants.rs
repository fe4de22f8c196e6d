//! The search for a layer's constants: tensors in it that aren't parameters, which none of Burn's
//! visitors sees and no mapper casts.

use burn::module::Module;

/// Finds the float tensors in `layer` that aren't parameters, as paths like `block.sinusoids`.
///
/// Burn shows them in the `Debug` text of a module alone. The search reads the text that Rust
/// derives; a tensor that a hand-written one leaves out isn't found.
pub(crate) fn constants<M: Module>(layer: &M) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<Open<'_>> = Vec::new();
    let text = format!("{layer:#?}");
    for line in text.lines() {
        let value = line.trim_start();
        // What was opened on lines that are indented as far has been closed.
        open.truncate((line.len() - value.len()) / "    ".len());
        if value.starts_with(['}', ']', ')']) {
            continue;
        }
        let number = open.last_mut().map(Open::next);
        let is_field = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let (field, value) = match value.split_once(": ") {
            Some((field, value)) if is_field(field) => (Some(field), value),
            _ => (None, value),
        };
        if let Some(of) = value.strip_suffix(['{', '[', '(']) {
            let is_in_list = open.last().is_some_and(|holder| holder.of.is_empty());
            let number = number.filter(|_| is_in_list).map(|number| number.to_string());
            let name = field.map(str::to_owned).or(number);
            open.push(Open { name, of: of.trim_end(), values: 0 });
        } else if (field, value) == (Some("kind"), "Float,")
            && let [holders @ .., tensor, primitive] = &open[..]
            && (tensor.of, primitive.of) == ("Tensor", "BridgeTensor")
        {
            let names = holders.iter().chain([tensor]).filter_map(|holder| holder.name.as_deref());
            found.push(names.collect::<Vec<_>>().join("."));
        }
    }
    found
}

/// A value whose text has begun and not ended.
struct Open<'a> {
    /// The name of the field or the number of the element that it is.
    name: Option<String>,
    /// The type or variant, like `Tensor`; empty for lists and tuples.
    of: &'a str,
    /// The number of values in it so far.
    values: usize,
}

impl Open<'_> {
    /// Counts a value in it. Returns the value's number, from 0.
    fn next(&mut self) -> usize {
        self.values += 1;
        self.values - 1
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{
        LinearConfig, PositionalEncoding, PositionalEncodingConfig, RotaryEncoding,
        RotaryEncodingConfig,
    };
    use burn::tensor::{Bool, Device, Int, Tensor};

    use super::*;

    #[derive(Module, Debug)]
    struct Block {
        linear: burn::nn::Linear,
        positions: Option<PositionalEncoding>,
        tables: Vec<RotaryEncoding>,
        pair: (Tensor<1>, Tensor<2, Bool>),
        order: Tensor<1, Int>,
        #[module(skip)]
        text: String,
    }

    #[test]
    fn float_tensors_that_are_no_parameters_are_found() {
        let device = Device::flex();
        let block = Block {
            linear: LinearConfig::new(2, 2).init(&device),
            positions: Some(PositionalEncodingConfig::new(2).init(&device)),
            tables: vec![RotaryEncodingConfig::new(4, 2).init(&device)],
            pair: (Tensor::ones([1], &device), Tensor::full([1, 1], true, &device)),
            order: Tensor::arange(0..3, &device),
            text: "kind: Float,\n        kind: Float,".to_owned(),
        };
        let expected = ["positions.sinusoids", "tables.0.freq_complex", "tables.0.theta", "pair.0"];
        assert_eq!(constants(&block), expected);
        assert!(constants(&LinearConfig::new(2, 2).init(&device)).is_empty());
        let alone: PositionalEncoding = PositionalEncodingConfig::new(2).init(&device);
        assert_eq!(constants(&alone), ["sinusoids"]);
    }
}
