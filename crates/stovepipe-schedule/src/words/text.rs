//! The one text form of actions, used in grids, files, errors, traces and tests.
//!
//! | text | meaning |
//! |---|---|
//! | `2F5` | stage 2 runs the forward of micro-batch 5 |
//! | `2R5` | stage 2 recomputes its last dropped segment of micro-batch 5 |
//! | `2B5` | stage 2 runs the whole backward of micro-batch 5 |
//! | `2I5`, `2W5` | the backward's two halves: gradient of the input, of the weights |
//! | `2SEND_F5`, `3RECV_F5` | the activation travels from stage 2 to the next |
//! | `3SEND_B5`, `2RECV_B5` | the gradient travels from stage 3 to the one before |
//! | `0SEND_F1>3`, `3RECV_F1<0` | the same along a skip from stage 0 to stage 3 |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::words::action::Action;
use crate::words::compute::{Compute, ComputeKind};
use crate::words::ids::{MicroBatch, Stage};
use crate::words::message::{Direction, Message};

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through a string, so that width and alignment work in grids.
        f.pad(&format!("{}{}{}", self.stage, self.kind.letter(), self.micro_batch))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (here, verb, sign, peer, m) = match self {
            Self::Compute(c) => return c.fmt(f),
            Self::Send(m) => (m.from, "SEND", '>', m.to, m),
            Self::Recv(m) => (m.to, "RECV", '<', m.from, m),
        };
        let mut text = format!("{here}{verb}_{}{}", m.direction.letter(), m.micro_batch);
        if !m.is_between_neighbours() {
            text.push(sign);
            text.push_str(&peer.to_string());
        }
        f.pad(&text)
    }
}

/// A text that is no action.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{text}` is not an action: {problem}; write stage, letter and micro-batch like `2F5` \
     (F, R, B, I or W), or a message like `2SEND_F5`, `3RECV_F5`, `0SEND_F1>3`"
)]
pub struct ParseActionError {
    text: String,
    problem: &'static str,
}

/// Takes the digits at the start of `text`, leaves the rest.
fn number(text: &mut &str) -> Result<usize, &'static str> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() {
        return Err("a number is missing");
    }
    *text = rest;
    digits.parse::<u32>().map(|n| n as usize).map_err(|_| "a number is too large")
}

fn parse(mut text: &str) -> Result<Action, &'static str> {
    let here = Stage::new(number(&mut text)?);
    let send = text.strip_prefix("SEND_").map(|rest| (true, rest));
    let message = send.or_else(|| text.strip_prefix("RECV_").map(|rest| (false, rest)));
    let letter = message.map_or(text, |(_, rest)| rest);
    let mut chars = letter.chars();
    let letter = chars.next().ok_or("the letter is missing")?;
    let mut rest = chars.as_str();
    let micro_batch = MicroBatch::new(number(&mut rest)?);

    let action = if let Some((sends, _)) = message {
        let direction = match letter {
            'F' => Direction::Forward,
            'B' => Direction::Backward,
            _ => return Err("a message carries F (activation) or B (gradient)"),
        };
        let peer = parse_peer(&mut rest, here, sends, direction)?;
        let (from, to) = if sends { (here, peer) } else { (peer, here) };
        let message = Message { direction, from, to, micro_batch };
        if sends { Action::Send(message) } else { Action::Recv(message) }
    } else {
        let kind = ComputeKind::ALL
            .into_iter()
            .find(|kind| kind.letter() == letter)
            .ok_or("the letter is unknown")?;
        Compute::new(kind, here, micro_batch).into()
    };
    if rest.is_empty() { Ok(action) } else { Err("something follows the action") }
}

/// Takes the other stage of a message from the start of `rest`. It isn't written where it is the
/// neighbour.
fn parse_peer(
    rest: &mut &str,
    here: Stage,
    sends: bool,
    direction: Direction,
) -> Result<Stage, &'static str> {
    // Forward messages go up the stages, backward ones down; the peer of a receive is the one it
    // came from.
    let is_above = sends == (direction == Direction::Forward);
    let peer = match rest.strip_prefix(if sends { '>' } else { '<' }) {
        Some(after) => {
            *rest = after;
            number(rest)?
        }
        None if is_above => here.index() + 1,
        None => here.index().checked_sub(1).ok_or("stage 0 has no stage before it")?,
    };
    if u32::try_from(peer).is_err() {
        return Err("a number is too large");
    }
    if is_above != (peer > here.index()) || peer == here.index() {
        return Err("activations go to a higher stage and gradients to a lower one");
    }
    Ok(Stage::new(peer))
}

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Messages show the text, which may be anything: keep it short.
        parse(text)
            .map_err(|problem| ParseActionError { text: text.chars().take(40).collect(), problem })
    }
}

impl FromStr for Compute {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Action>()?.compute().ok_or_else(|| ParseActionError {
            text: text.to_owned(),
            problem: "a plan holds compute actions only",
        })
    }
}

/// Serializes a type through its text form.
macro_rules! serde_as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
serde_as_text!(Action, Compute);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn actions() -> impl Strategy<Value = Action> {
        let compute = (0..5usize, 0..2000usize, 0..2000usize).prop_map(|(kind, stage, m)| {
            Compute::new(ComputeKind::ALL[kind], Stage::new(stage), MicroBatch::new(m)).into()
        });
        let message = (any::<bool>(), any::<bool>(), 0..200usize, 1..200usize, 0..2000usize)
            .prop_map(|(sends, forward, low, gap, m)| {
                let (low, high) = (Stage::new(low), Stage::new(low + gap));
                let (direction, from, to) = if forward {
                    (Direction::Forward, low, high)
                } else {
                    (Direction::Backward, high, low)
                };
                let message = Message { direction, from, to, micro_batch: MicroBatch::new(m) };
                if sends { Action::Send(message) } else { Action::Recv(message) }
            });
        prop_oneof![compute, message]
    }

    proptest! {
        #[test]
        fn text_round_trips(action in actions()) {
            prop_assert_eq!(action.to_string().parse::<Action>(), Ok(action));
            let json = serde_json::to_string(&action).expect("serializes");
            prop_assert_eq!(serde_json::from_str::<Action>(&json).expect("parses"), action);
        }

        #[test]
        fn any_text_parses_or_is_refused_without_a_panic(text in ".{0,24}") {
            if let Ok(action) = text.parse::<Action>() {
                // What is accepted means one thing, up to leading zeros.
                prop_assert_eq!(action.to_string().parse::<Action>(), Ok(action));
            }
        }
    }

    #[test]
    fn the_documented_forms_mean_what_they_say() {
        let m = MicroBatch::new;
        let s = Stage::new;
        assert_eq!("2B5".parse(), Ok(Compute::backward(s(2), m(5))));
        let skip =
            Message { direction: Direction::Forward, from: s(0), to: s(3), micro_batch: m(1) };
        assert_eq!("0SEND_F1>3".parse(), Ok(Action::Send(skip)));
        assert_eq!("3RECV_F1<0".parse(), Ok(Action::Recv(skip)));
        let back =
            Message { direction: Direction::Backward, from: s(2), to: s(1), micro_batch: m(0) };
        assert_eq!("2SEND_B0".parse(), Ok(Action::Send(back)));
        assert_eq!("1RECV_B0".parse(), Ok(Action::Recv(back)));
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for text in [
            "",
            "F0",
            "0F",
            "0X1",
            "0F1 ",
            "0SEND_R1",
            "0RECV_F1",
            "0SEND_F1>0",
            "2SEND_F1>1",
            "99999999999F0",
            "0F1>2",
            "0SEND_F1<2",
        ] {
            let error = text.parse::<Action>().expect_err(text).to_string();
            assert!(error.contains("write stage, letter and micro-batch"), "{error}");
        }
        assert!("0SEND_F1".parse::<Compute>().is_err());
    }
}
