package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
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
)

// logMin is what stands for zero on a logarithmic axis.
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
	if err := os.MkdirAll(*out, 0o755); err != nil { //nolint:gosec // pictures are for everybody
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

func (c chart) save(name string) (err error) {
	p := plot.New()
	p.Title.Text = c.title
	p.BackgroundColor = nil // as the page has it
	height := curveHeight
	switch c.kind {
	case bars:
		height, err = frameHeight+vg.Length(len(c.names))*rowHeight, c.drawBars(p)
	case dots:
		height, err = frameHeight+vg.Length(len(c.names))*rowHeight, c.drawDots(p)
	case curves:
		err = c.drawCurves(p)
	}
	if err != nil {
		return err
	}
	canvas := vgsvg.New(chartWidth, height)
	p.Draw(draw.New(canvas))
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(file)
	return errors.Join(err, file.Close())
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
	for i, part := range c.parts {
		v := make(plotter.Values, len(part.values))
		for j, value := range part.values {
			v[row(j)] = value
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
	p.X.Min = 0
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
		dot.GlyphStyle = draw.GlyphStyle{Color: plotutil.Color(i), Radius: vg.Points(4), Shape: plotutil.Shape(i)}
		p.Add(dot)
		c.legend(p, part, dot)
	}
	p.Y.Min, p.Y.Max = -0.5, float64(len(c.names))-0.5
	if p.X.Max <= p.X.Min {
		p.X.Max = 10 * p.X.Min // a logarithmic axis wants some length
	}
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
	return nil
}

// legend names a part, where there are several.
func (c chart) legend(p *plot.Plot, part part, thumbs ...plot.Thumbnailer) {
	p.Legend.Top = c.kind != curves
	if len(c.parts) > 1 {
		p.Legend.Add(part.name, thumbs...)
	}
}
