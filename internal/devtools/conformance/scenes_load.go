package conformance

import "fmt"

var loadScenes = []scene{
	{rules: []string{"batch"}, play: playBatch},
	{rules: []string{"large"}, play: playLarge},
	{rules: []string{"in-flight"}, play: playInFlight},
}

const largeEvent = 8 << 20

func (s *stream) many(n int) {
	tasks := make([]task, n)
	for i := range tasks {
		tasks[i].do = "done"
	}
	s.deliver(tasks...)
}

// allDone waits until all deliveries have been answered, and checks that each is DONE.
func (s *stream) allDone(rule string) {
	s.r.await(rule, "answers of all deliveries", func() bool { return len(s.answers) == len(s.given) })
	s.r.change(func() {
		for id, result := range s.answers {
			if result.GetKind() != kindDone && s.r.dead == "" {
				s.r.violated(rule, "the answer of delivery %d is %s, want DONE", id, kindName(result.GetKind()))
			}
		}
	})
}

func playBatch(r *router) {
	s := r.stream("batch", 1)
	s.renew(long)
	for range 2 {
		s.many(min(batchMax, s.window()))
		s.allDone("batch")
	}
}

func playLarge(r *router) {
	s := r.stream("large", 1)
	s.renew(long)
	for range 2 {
		s.want("large", s.give(task{do: "done", pad: largeEvent}), kindDone)
	}
}

func playInFlight(r *router) {
	s := r.stream("in-flight", 1)
	for left := s.window(); left > 0 && !r.over(); {
		n := min(batchMax, left)
		s.many(n)
		left -= n
	}
	s.receipted()
	s.renew(long)
	r.awaitFor(3*r.patience, "in-flight", fmt.Sprintf("answers of %d deliveries", s.window()), func() bool { return len(s.answers) == len(s.given) })
	s.allDone("in-flight")
}
