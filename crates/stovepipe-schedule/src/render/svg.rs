//! Timelines as SVG: ranks as rows, micro-batches by colour, idle time left visible.

use svg::Document;
use svg::node::element::path::Data;
use svg::node::element::{Group, Line, Path, Rectangle, Text, Title};

use crate::simulator::queues::Queues;
use crate::simulator::timeline::{Span, Timeline};
use crate::words::compute::{Compute, ComputeKind};
use crate::words::ids::{MicroBatch, Stage};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const ROW: f64 = 34.0;
const ROW_GAP: f64 = 6.0;
const TITLE: f64 = 30.0;
const AXIS: f64 = 34.0;
const PANEL_GAP: f64 = 18.0;
const LEGEND: f64 = 40.0;
/// Boxes that would need smaller text carry none.
const LABEL_SIZES: std::ops::RangeInclusive<f64> = 7.0..=12.0;
const FONT: &str = "system-ui, sans-serif";
const INK: &str = "#1f2933";
const WAITING: &str = "#d64545";
/// More actions than any viewer shows.
const MAX_ACTIONS: usize = 200_000;

/// Why no picture was drawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// No viewer could show it.
    #[error(
        "a picture of {actions} actions is too large, {MAX_ACTIONS} is the most: draw fewer ranks \
         or micro-batches, or write a trace, which has no limit"
    )]
    TooLarge {
        /// The compute actions of all timelines.
        actions: usize,
    },
}

/// One timeline in a picture.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// Says what it shows, like `predicted` or `measured`.
    pub title: &'a str,
    /// The times.
    pub timeline: &'a Timeline,
}

/// Draws timelines above each other on one time axis, so that predicted and measured compare.
///
/// `unit` is written at the axis: `s` for measured times, or whatever the costs are given in. Where
/// more than one value waits for a rank at a time, a line at the foot of its row shows how many.
///
/// # Errors
///
/// [`PictureError::TooLarge`] for more actions than a viewer shows.
pub fn render_svg(panels: &[Panel<'_>], unit: &str) -> Result<String, PictureError> {
    let of_panel = |panel: &Panel<'_>| -> usize {
        (0..panel.timeline.ranks()).map(|rank| panel.timeline.compute_spans(rank).count()).sum()
    };
    let actions = panels.iter().map(of_panel).sum();
    if actions > MAX_ACTIONS {
        return Err(PictureError::TooLarge { actions });
    }
    let longest = panels.iter().map(|p| p.timeline.makespan()).fold(0.0, f64::max);
    let scale = if longest > 0.0 { (WIDTH - LEFT - RIGHT) / longest } else { 0.0 };
    let height = panels.iter().map(|p| panel_height(p) + PANEL_GAP).sum::<f64>() + LEGEND;
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", FONT)
        .add(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "#ffffff"));
    let mut top = 0.0;
    for panel in panels {
        document = document
            .add(draw_panel(panel, scale, unit).set("transform", format!("translate(0 {top})")));
        top += panel_height(panel) + PANEL_GAP;
    }
    let legend = legend().set("transform", format!("translate({LEFT} {top})"));
    Ok(document.add(legend).to_string())
}

fn panel_height(panel: &Panel<'_>) -> f64 {
    TITLE + panel.timeline.ranks() as f64 * (ROW + ROW_GAP) + AXIS
}

fn text(x: f64, y: f64, size: f64, content: impl Into<String>) -> Text {
    Text::new(content).set("x", x).set("y", y).set("font-size", size).set("fill", INK)
}

fn rectangle(x: f64, y: f64, width: f64, height: f64, fill: &str) -> Rectangle {
    let round = |v: f64| (v * 100.0).round() / 100.0;
    Rectangle::new()
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
        .set("fill", fill)
}

fn draw_panel(panel: &Panel<'_>, scale: f64, unit: &str) -> Group {
    let timeline = panel.timeline;
    let mut title = format!("{}: {}", panel.title, time(timeline.makespan(), unit));
    if let Some(bubble) = timeline.bubble() {
        title.push_str(&format!(", bubble {:.1}% of total time", 100.0 * bubble));
    }
    let mut group = Group::new().add(text(LEFT, TITLE - 10.0, 15.0, title).set("font-weight", 600));
    let width = timeline.makespan() * scale;
    let queues = timeline.queues(|_| 1);
    let most = (0..timeline.ranks()).map(|rank| queues.most(rank)).max().unwrap_or(0);
    for rank in 0..timeline.ranks() {
        let y = TITLE + rank as f64 * (ROW + ROW_GAP);
        let label = text(LEFT - 8.0, y + ROW * 0.62, 13.0, format!("rank {rank}"));
        group = group
            .add(label.set("text-anchor", "end"))
            // The empty row: what stays visible of it is idle time.
            .add(rectangle(LEFT, y, width, ROW, "#edf0f3"));
        for span in timeline.compute_spans(rank) {
            group = draw_span(group, span, y, scale, unit);
        }
        if let Some(update) = timeline.update(rank).filter(|u| u.end > u.start) {
            let (x, w) = (LEFT + update.start * scale, (update.end - update.start) * scale);
            let hint = format!("update, {}", time(update.end - update.start, unit));
            let bar = rectangle(x, y, w, ROW, "#3e4c59").add(Title::new(hint));
            group = group.add(bar);
        }
        if queues.most(rank) > 1 {
            group = group.add(waiting(&queues, rank, y + ROW, scale, most));
        }
    }
    axis(group, TITLE + timeline.ranks() as f64 * (ROW + ROW_GAP), timeline.makespan(), scale, unit)
}

fn draw_span(mut group: Group, span: &Span, y: f64, scale: f64, unit: &str) -> Group {
    let Some(compute) = span.action.compute() else {
        return group;
    };
    let (x, width) = (LEFT + span.start * scale, span.duration() * scale);
    let hint = format!("{compute}, {} to {}", time(span.start, unit), time(span.end, unit));
    let (fill, ink) = colour(compute);
    let bar = rectangle(x, y, width, ROW, &fill)
        .set("stroke", "#ffffff")
        .set("stroke-width", if width > 4.0 { 0.8 } else { 0.0 })
        .add(Title::new(hint));
    group = group.add(bar);
    let label = compute.to_string();
    // A character is at most about 0.72 times as wide as high.
    let size = ((width - 2.0) / (0.72 * label.len() as f64)).min(*LABEL_SIZES.end());
    if size >= *LABEL_SIZES.start() {
        let label = text(x + width / 2.0, y + ROW / 2.0 + size * 0.35, size, label);
        group = group
            .add(label.set("text-anchor", "middle").set("fill", ink).set("pointer-events", "none"));
    }
    group
}

/// The number of values that wait for a rank, over time; the most of all ranks is half a row high.
fn waiting(queues: &Queues, rank: usize, foot: f64, scale: f64, most: u64) -> Path {
    let round = |v: f64| (v * 100.0).round() / 100.0;
    let height = |values: u64| round(foot - ROW / 2.0 * values as f64 / most as f64);
    let mut line = Data::new().move_to((LEFT, foot));
    for &(time, values) in queues.of(rank) {
        line = line.horizontal_line_to(round(LEFT + time * scale)).vertical_line_to(height(values));
    }
    let hint = format!("at most {} values wait for rank {rank}", queues.most(rank));
    Path::new()
        .set("d", line)
        .set("fill", WAITING)
        .set("fill-opacity", 0.25)
        .set("stroke", WAITING)
        .set("stroke-width", 0.8)
        .add(Title::new(hint))
}

/// Hue by micro-batch, in steps of the golden angle so that neighbours differ; lightness by kind.
fn colour(compute: Compute) -> (String, &'static str) {
    let hue = (210.0 + 137.508 * compute.micro_batch.index() as f64) % 360.0;
    let (saturation, lightness, ink) = match compute.kind {
        ComputeKind::Forward => (0.62, 0.78, INK),
        ComputeKind::Recompute => (0.30, 0.88, INK),
        ComputeKind::Backward => (0.52, 0.48, "#ffffff"),
        ComputeKind::BackwardInput => (0.52, 0.56, "#ffffff"),
        ComputeKind::BackwardWeight => (0.42, 0.36, "#ffffff"),
    };
    (hex(hue, saturation, lightness), ink)
}

/// HSL as `#rrggbb`, which every viewer of SVG knows.
fn hex(hue: f64, saturation: f64, lightness: f64) -> String {
    let amplitude = saturation * lightness.min(1.0 - lightness);
    let channel = |offset: f64| {
        let k = (offset + hue / 30.0) % 12.0;
        let value = lightness - amplitude * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (255.0 * value).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(0.0), channel(8.0), channel(4.0))
}

/// Ticks at round numbers, at most ten of them.
fn axis(mut group: Group, y: f64, makespan: f64, scale: f64, unit: &str) -> Group {
    let line = |x1: f64, x2: f64, y2: f64| {
        Line::new().set("x1", x1).set("x2", x2).set("y1", y).set("y2", y2).set("stroke", "#7b8794")
    };
    group = group.add(line(LEFT, LEFT + makespan * scale, y));
    if makespan <= 0.0 || !makespan.is_finite() {
        return group;
    }
    let rough = makespan / 10.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|f| f * magnitude).into_iter().find(|s| *s >= rough);
    let step = step.unwrap_or(10.0 * magnitude);
    let ticks = (makespan / step).floor() as usize;
    for tick in 0..=ticks {
        let value = tick as f64 * step;
        let x = LEFT + value * scale;
        let label = if tick == ticks { time(value, unit) } else { time(value, "") };
        group = group
            .add(line(x, x, y + 5.0))
            .add(text(x, y + 18.0, 11.0, label).set("text-anchor", "middle"));
    }
    group
}

fn time(value: f64, unit: &str) -> String {
    // Up to four significant digits, without a tail of zeros.
    let decimals =
        if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).clamp(0, 9) };
    let mut text = format!("{value:.*}", decimals as usize);
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    if !unit.is_empty() {
        text.push(' ');
        text.push_str(unit);
    }
    text
}

fn legend() -> Group {
    let m = MicroBatch::new(0);
    let s = Stage::new(0);
    let names = [
        "forward (F)",
        "recompute (R)",
        "backward (B)",
        "input gradient (I)",
        "weight gradient (W)",
    ];
    let mut group = Group::new();
    let mut x = 0.0;
    let boxes = ComputeKind::ALL
        .into_iter()
        .zip(names)
        .map(|(kind, name)| (colour(Compute::new(kind, s, m)).0, name))
        .chain([
            ("#3e4c59".to_owned(), "update"),
            ("#edf0f3".to_owned(), "idle"),
            (WAITING.to_owned(), "values that wait"),
        ]);
    for (fill, name) in boxes {
        group =
            group.add(rectangle(x, 0.0, 16.0, 16.0, &fill)).add(text(x + 22.0, 12.5, 12.0, name));
        x += 44.0 + 6.6 * name.len() as f64;
    }
    group.add(text(x, 12.5, 12.0, "hue: micro-batch").set("fill", "#7b8794"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CostModel, Edges, ForwardOnly, GPipe, Program, Retention, Schedule, Shape, StageCost,
        simulate,
    };

    #[test]
    fn every_compute_action_is_drawn_once() {
        let plan = GPipe::default().plan(Shape::new(2, 4)).expect("a plan");
        let program =
            Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan)).expect("lowers");
        let timeline = simulate(&program, &CostModel::uniform(2, 1.0, 2.0)).expect("simulates");
        let panel = Panel { title: "predicted", timeline: &timeline };
        let picture = render_svg(&[panel, panel], "s").expect("draws");
        for action in plan.rows().iter().flatten() {
            assert_eq!(picture.matches(&format!("{action}, ")).count(), 2, "{action}");
        }
        assert!(picture.contains("predicted: 15 s, bubble 20.0% of total time"), "{picture}");
    }

    #[test]
    fn an_empty_timeline_is_still_a_picture() {
        let timeline = Timeline::new(vec![Vec::new(); 2], vec![None; 2]);
        let picture = render_svg(&[Panel { title: "empty", timeline: &timeline }], "s");
        assert!(picture.expect("draws").contains("rank 1"));
    }

    #[test]
    fn values_that_wait_are_shown() {
        let plan = ForwardOnly.plan(Shape::new(2, 5)).expect("a plan");
        let program = Program::lower(&plan, &Edges::chain(2), &Retention::keep_all(&plan));
        let costs = CostModel::new([StageCost::new(1.0, 0.0), StageCost::new(9.0, 0.0)].to_vec());
        let timeline = simulate(&program.expect("lowers"), &costs).expect("simulates");
        let picture = render_svg(&[Panel { title: "queue", timeline: &timeline }], "s");
        let picture = picture.expect("draws");
        assert_eq!(picture.matches("at most 4 values wait for rank 1").count(), 1, "{picture}");
        assert!(!picture.contains("wait for rank 0"));
    }

    #[test]
    fn a_picture_that_nothing_could_show_is_refused() {
        let action = Compute::forward(Stage::new(0), MicroBatch::new(0)).into();
        let span = Span { action, start: 0.0, end: 1.0 };
        let timeline = Timeline::new(vec![vec![span; 150_000]; 2], vec![None; 2]);
        let error = render_svg(&[Panel { title: "large", timeline: &timeline }], "s");
        let error = error.expect_err("too large").to_string();
        assert!(error.contains("300000 actions") && error.contains("write a trace"), "{error}");
    }

    #[test]
    fn colours_are_those_of_css() {
        assert_eq!(hex(0.0, 1.0, 0.5), "#ff0000");
        assert_eq!(hex(120.0, 1.0, 0.25), "#008000");
        assert_eq!(hex(210.0, 0.5, 0.4), "#336699");
        assert_eq!(hex(77.0, 0.0, 1.0), "#ffffff");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(time(0.123456, "s"), "0.1235 s");
        assert_eq!(time(15.0, ""), "15");
        assert_eq!(time(0.0, "s"), "0 s");
    }
}
