package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plotCommand draws the result of a run.
const plotCommand = "plot"

// The size of a picture. A bar or row has its own height.
const (
	chartWidth  = 16 * vg.Centimeter
	curveHeight = 9 * vg.Centimeter
	frameHeight = 3 * vg.Centimeter
	rowHeight   = 0.8 * vg.Centimeter
	barHeight   = 0.45 * vg.Centimeter
	margin      = 0.2 * vg.Centimeter
)

// logMin replaces zero on a logarithmic axis.
const logMin = 0.001

func runPlot(args []string) error {
	f := flag.NewFlagSet("bench "+plotCommand, flag.ContinueOnError)
	in := f.String("in", "", "the JSON of a run (--out of the bench)")
	out := f.String("out", "docs/img", "the folder for the pictures")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *in == "" || f.NArg() > 0 {
		return errors.New("plot: want --in FILE, the JSON of a run, and --out FOLDER")
	}
	b, err := os.ReadFile(*in)
	if err != nil {
		return err
	}
	var run Run
	if err := json.Unmarshal(b, &run); err != nil {
		return fmt.Errorf("plot: %s: %w", *in, err)
	}
	all := charts(run)
	if len(all) == 0 {
		return fmt.Errorf("plot: %s holds no report", *in)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	for _, c := range all {
		name := filepath.Join(*out, c.file+".svg")
		if err := c.save(name); err != nil {
			return fmt.Errorf("plot: %s: %w", name, err)
		}
		fmt.Println(name)
	}
	return nil
}

func (c chart) save(name string) error {
	p, height, err := c.plot()
	if err != nil {
		return err
	}
	canvas := vgsvg.New(chartWidth, height)
	p.Draw(draw.Crop(draw.New(canvas), margin, -margin, margin, -margin))
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(file)
	return errors.Join(err, file.Close())
}

// plot lays out the chart, and returns its height.
func (c chart) plot() (p *plot.Plot, height vg.Length, err error) {
	p = plot.New()
	p.Title.Text = c.title
	p.BackgroundColor = nil // as the page has it
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		f.Variant = "Sans"
	}
	height = curveHeight
	switch c.kind {
	case bars:
		height, err = frameHeight+vg.Length(len(c.names)+len(c.parts)/2)*rowHeight, c.drawBars(p)
	case dots:
		height, err = frameHeight+vg.Length(len(c.names)+len(c.parts)/2)*rowHeight, c.drawDots(p)
	case curves:
		err = c.drawCurves(p)
	}
	return p, height, err
}

// rows puts the names on the y axis, the first one at the top. It returns the row of
// each name.
func (c chart) rows(p *plot.Plot) func(i int) int {
	last := len(c.names) - 1
	names := make([]string, len(c.names))
	for i, name := range c.names {
		names[last-i] = name
	}
	p.NominalY(names...)
	p.X.Label.Text = c.unit
	return func(i int) int { return last - i }
}

func (c chart) drawBars(p *plot.Plot) error {
	row := c.rows(p)
	var below *plotter.BarChart
	sums := make(plotter.XYs, len(c.names))
	for i, part := range c.parts {
		v := make(plotter.Values, len(part.values))
		for j, value := range part.values {
			v[row(j)] = value
			sums[row(j)].X += value
			sums[row(j)].Y = float64(row(j))
		}
		bar, err := plotter.NewBarChart(v, barHeight)
		if err != nil {
			return err
		}
		bar.Horizontal, bar.Color, bar.LineStyle.Width = true, plotutil.Color(i), 0
		if below != nil {
			bar.StackOn(below)
		}
		below = bar
		p.Add(bar)
		c.legend(p, part, bar)
	}
	texts := make([]string, len(sums))
	for i, sum := range sums {
		texts[i] = strconv.FormatFloat(sum.X, 'f', 1, 64)
	}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: sums, Labels: texts})
	if err != nil {
		return err
	}
	labels.Offset = vg.Point{X: margin / 2, Y: -margin / 2}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Variant = "Sans"
	}
	p.Add(labels)
	p.X.Min, p.X.Max = 0, max(1.12*p.X.Max, logMin) // room for the labels
	c.roomForLegend(p)
	return nil
}

func (c chart) drawDots(p *plot.Plot) error {
	row := c.rows(p)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	for i, part := range c.parts {
		points := make(plotter.XYs, len(part.values))
		for j, value := range part.values {
			points[j] = plotter.XY{X: max(value, logMin), Y: float64(row(j))}
		}
		dot, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		dot.GlyphStyle = draw.GlyphStyle{Color: plotutil.Color(i), Radius: vg.Points(4), Shape: shapes[i%len(shapes)]}
		p.Add(dot)
		c.legend(p, part, dot)
	}
	p.X.Min, p.X.Max = p.X.Min/1.5, p.X.Max*1.5
	c.roomForLegend(p)
	return nil
}

func (c chart) drawCurves(p *plot.Plot) error {
	p.X.Label.Text, p.Y.Label.Text = c.names[0], c.unit
	p.Add(plotter.NewGrid())
	for i, part := range c.parts {
		points := make(plotter.XYs, len(part.values))
		for j, value := range part.values {
			points[j] = plotter.XY{X: c.xs[j], Y: value}
		}
		line, dot, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dot.Color, dot.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		p.Add(line, dot)
		c.legend(p, part, line, dot)
	}
	p.Y.Min = 0
	if c.log2 {
		ticks := make(plot.ConstantTicks, len(c.xs))
		for i, x := range c.xs {
			ticks[i] = plot.Tick{Value: x, Label: strconv.FormatFloat(math.Exp2(x), 'f', -1, 64)}
		}
		p.X.Tick.Marker = ticks
	}
	if c.mark > 0 {
		line, err := plotter.NewLine(plotter.XYs{{X: c.mark, Y: 0}, {X: c.mark, Y: p.Y.Max}})
		if err != nil {
			return err
		}
		line.Dashes = plotutil.Dashes(1)
		p.Add(line)
	}
	return nil
}

// shapes are filled, so that they can be seen on the lines of a grid.
var shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}}

// roomForLegend lets the rows begin below the legend.
func (c chart) roomForLegend(p *plot.Plot) {
	p.Y.Min, p.Y.Max = -0.5, float64(len(c.names))-0.5
	if len(c.parts) > 1 {
		p.Y.Max += 0.5 * float64(len(c.parts))
	}
}

// legend names a part, where there are several.
func (c chart) legend(p *plot.Plot, part part, thumbs ...plot.Thumbnailer) {
	p.Legend.Top = c.kind != curves
	if len(c.parts) > 1 {
		p.Legend.Add(part.name, thumbs...)
	}
}
