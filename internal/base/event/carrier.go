package event

import (
	"slices"
	"strings"
)

// Carrier lets a propagator read the trace context of an event from its properties,
// and write another one. It is a TextMapCarrier of OpenTelemetry.
//
// Names are compared without regard to case: not every producer writes them in lower case.
type Carrier struct{ Properties []Property }

// Get returns the value of a property, "" when there is none.
func (c *Carrier) Get(name string) string {
	if i := c.index(name); i >= 0 {
		return c.Properties[i].Value
	}
	return ""
}

// Set changes a property, or adds it. Holders of the previous properties do not see the change:
// they are copied.
func (c *Carrier) Set(name, value string) {
	i := c.index(name)
	if i < 0 {
		c.Properties = append(slices.Clip(c.Properties), Property{Name: name, Value: value})
		return
	}
	c.Properties = slices.Clone(c.Properties)
	c.Properties[i].Value = value
}

// Keys returns the names of all properties.
func (c *Carrier) Keys() []string {
	names := make([]string, len(c.Properties))
	for i := range c.Properties {
		names[i] = c.Properties[i].Name
	}
	return names
}

func (c *Carrier) index(name string) int {
	return slices.IndexFunc(c.Properties, func(p Property) bool { return strings.EqualFold(p.Name, name) })
}
