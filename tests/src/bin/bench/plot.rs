//! Step curves as an SVG, in the style of the other pictures of the docs.

use std::{fmt::Write as _, time::Duration};

const WIDTH: f64 = 860.0;
/// Of one curve's panel, its title included.
const PANEL: f64 = 150.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 20.0;
/// Between the top of a panel and its highest value.
const TITLE: f64 = 34.0;
/// Between the lowest value and the foot of a panel.
const FOOT: f64 = 12.0;
/// For the axis of time below the last panel.
const AXIS: f64 = 34.0;

const STYLE: &str = "\
    svg { --ink: #1f2328; --dim: #59636e; --line: #8c959f; --go: #1a7f37; --bad: #cf222e; --wait: #9a6700; --paper: #ffffff }
    @media (prefers-color-scheme: dark) {
      svg { --ink: #e6edf3; --dim: #9198a1; --line: #656c76; --go: #3fb950; --bad: #f85149; --wait: #d29922; --paper: #0d1117 }
    }
    .paper { fill: var(--paper) } text { fill: var(--ink) } .dim { fill: var(--dim); font-size: 12px } .head { font-weight: 600 }
    .curve { fill: var(--go); fill-opacity: .25; stroke: var(--go); stroke-width: 1.5 }
    .above { fill: var(--bad); fill-opacity: .5; stroke: none }
    .axis { stroke: var(--line) } .level { stroke: var(--wait); stroke-dasharray: 4 3 }";

/// Several curves below each other, over the same time and with the same scale.
pub struct Plot<'a> {
    pub title: &'a str,
    pub description: &'a str,
    pub panels: Vec<Panel>,
    /// Values to be marked in each panel, and what they mean.
    pub levels: &'a [(usize, &'a str)],
    /// What is above this value is marked.
    pub too_much: usize,
}

pub struct Panel {
    pub title: String,
    /// From each time on, the value; in the order of time.
    pub steps: Vec<(Duration, usize)>,
}

impl Plot<'_> {
    pub fn svg(&self) -> String {
        let steps = || self.panels.iter().flat_map(|panel| &panel.steps);
        let end = steps()
            .map(|(at, _)| at.as_secs_f64())
            .fold(1.0, f64::max)
            .ceil();
        let top = steps().map(|(_, value)| *value).max().unwrap_or(1).max(1);
        let scale = Scale {
            end,
            top: top as f64,
        };
        let height = PANEL * self.panels.len() as f64 + AXIS;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"ui-sans-serif, \
             system-ui, sans-serif\" font-size=\"14\" role=\"img\" aria-labelledby=\"t d\">\n  <title \
             id=\"t\">{}</title>\n  <desc id=\"d\">{}</desc>\n  <style>\n{STYLE}\n  </style>\n  <rect class=\"paper\" \
             width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n",
            self.title, self.description
        );
        for (number, panel) in self.panels.iter().enumerate() {
            self.draw(&mut svg, panel, PANEL * number as f64, scale);
        }
        let axis = height - AXIS + 16.0;
        for second in (0..=end as usize).step_by(if end > 12.0 { 5 } else { 1 }) {
            let x = scale.x(second as f64);
            // Writing to a String does not fail.
            let _ = writeln!(
                svg,
                "  <text class=\"dim\" x=\"{x:.1}\" y=\"{axis}\" text-anchor=\"middle\">{second} s</text>"
            );
        }
        svg += "</svg>\n";
        svg
    }

    fn draw(&self, svg: &mut String, panel: &Panel, offset: f64, scale: Scale) {
        let y = |value: f64| offset + scale.y(value);
        let bottom = y(0.0);
        let right = WIDTH - RIGHT;
        // Writing to a String does not fail.
        let _ = writeln!(
            svg,
            "  <text class=\"head\" x=\"{LEFT}\" y=\"{}\">{}</text>\n  <path class=\"curve\" d=\"{}\"/>",
            offset + 20.0,
            panel.title,
            outline(&panel.steps, scale, offset, 0)
        );
        let _ = writeln!(
            svg,
            "  <path class=\"above\" d=\"{}\"/>\n  <path class=\"axis\" d=\"M{LEFT} {bottom:.1}H{right}\"/>",
            outline(&panel.steps, scale, offset, self.too_much)
        );
        for (value, meaning) in self.levels {
            let y = y(*value as f64);
            let _ = writeln!(
                svg,
                "  <path class=\"level\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"dim\" x=\"{}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{value}</text><text class=\"dim\" x=\"{right}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{meaning}</text>",
                LEFT - 8.0,
                y + 4.0,
                y - 4.0
            );
        }
    }
}

#[derive(Clone, Copy)]
struct Scale {
    /// Seconds at the right edge.
    end: f64,
    /// The value at the upper edge.
    top: f64,
}

impl Scale {
    fn x(self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.end
    }

    /// Relative to the panel's top.
    fn y(self, value: f64) -> f64 {
        let height = PANEL - TITLE - FOOT;
        TITLE + height * (1.0 - value / self.top)
    }
}

/// What the steps have above `floor`, as the outline of an area.
fn outline(steps: &[(Duration, usize)], scale: Scale, offset: f64, floor: usize) -> String {
    let y = |value: usize| offset + scale.y(value.max(floor) as f64);
    let mut path = format!("M{LEFT} {:.1}", y(floor));
    for (at, value) in steps {
        let _ = write!(path, "H{:.1}V{:.1}", scale.x(at.as_secs_f64()), y(*value));
    }
    let _ = write!(path, "V{:.1}Z", y(floor));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_falls_and_is_marked_where_it_is_too_high() {
        let second = Duration::from_secs(1);
        let steps = vec![(second, 2), (second * 2, 4), (second * 3, 0)];
        let plot = Plot {
            title: "title",
            description: "description",
            panels: vec![Panel {
                title: "panel".to_owned(),
                steps: steps.clone(),
            }],
            levels: &[(2, "enough")],
            too_much: 2,
        };
        let svg = plot.svg();
        for part in ["<title", "panel", "enough", ">3 s<", "class=\"above\""] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        let scale = Scale { end: 3.0, top: 4.0 };
        let all = outline(&steps, scale, 0.0, 0);
        assert_eq!(all, "M44 138.0H309.3V86.0H574.7V34.0H840.0V138.0V138.0Z");
        let above = outline(&steps, scale, 0.0, 2);
        assert_eq!(above, "M44 86.0H309.3V86.0H574.7V34.0H840.0V86.0V86.0Z");
    }
}
