package journal

import (
	"fmt"
	"strings"
	"testing"
)

func TestFindRepeats(t *testing.T) {
	tests := map[string]struct {
		plays func(a, b *process) (files []File, kills []Kill)
		want  string
	}{
		"nothing twice": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			b.handle(30, 40, "2", "k", 2)
			return []File{a.file(), b.file()}, []Kill{{Path: a.path, At: ms(25)}}
		}, ""},
		"failed, twice": {func(a, b *process) ([]File, []Kill) {
			a.end(20, a.start(10, "1", "k", 1), Failed)
			a.end(40, a.start(30, "1", "k", 1), Failed)
			a.handle(50, 60, "1", "k", 1)
			return []File{a.file(), b.file()}, nil
		}, "1 failed, 1 failed"},
		"cut": {func(a, b *process) ([]File, []Kill) {
			a.end(20, a.start(10, "1", "k", 1), Cancelled)
			b.handle(30, 40, "1", "k", 2)
			return []File{a.file(), b.file()}, nil
		}, "1 cut"},
		"died with its process": {func(a, b *process) ([]File, []Kill) {
			a.start(10, "1", "k", 1)
			b.handle(3000, 3010, "1", "k", 2)
			return []File{a.killedAt(20), b.file()}, nil
		}, "1 died"},
		"done while its router died": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 100, "1", "k", 1)
			b.handle(2500, 2510, "1", "k", 2)
			return []File{a.file(), b.file()}, []Kill{{Path: a.path, At: ms(50)}}
		}, "1 report lost"},
		"done just before its application and router died": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			b.handle(2500, 2510, "1", "k", 2)
			return []File{a.killedAt(30), b.file()}, nil
		}, "1 report lost"},
		"done long before": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			b.handle(9500, 9510, "1", "k", 2)
			return []File{a.file(), b.file()}, []Kill{{Path: a.path, At: ms(5000)}}
		}, "1 window lost"},
		"done long before, and the key had moved to who died": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			b.handle(30, 40, "2", "k", 2)
			a.handle(9500, 9510, "1", "k", 3)
			return []File{a.file(), b.file()}, []Kill{{Path: b.path, At: ms(5000)}}
		}, "1 window lost"},
		"nobody died": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			b.handle(30, 40, "1", "k", 2)
			return []File{a.file(), b.file()}, nil
		}, "1 unexplained"},
		"somebody else died": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			a.handle(50, 60, "1", "k", 1)
			return []File{a.file(), b.file()}, []Kill{{Path: b.path, At: ms(30)}}
		}, "1 unexplained"},
		"its owner had died before it began": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			a.handle(5000, 5010, "2", "k", 2)
			a.handle(5020, 5030, "2", "k", 2)
			return []File{a.file(), b.file()}, []Kill{{Path: a.path, At: ms(30)}}
		}, "2 unexplained"},
		"while it runs": {func(a, b *process) ([]File, []Kill) {
			h := a.start(10, "1", "k", 1)
			b.handle(15, 18, "1", "k", 2)
			a.end(20, h, Done)
			return []File{a.file(), b.file()}, nil
		}, "1 unexplained"},
		"done is remembered after another try": {func(a, b *process) ([]File, []Kill) {
			a.handle(10, 20, "1", "k", 1)
			b.end(2600, b.start(2500, "1", "k", 2), Failed)
			b.handle(2700, 2800, "1", "k", 2)
			return []File{a.file(), b.file()}, []Kill{{Path: a.path, At: ms(30)}}
		}, "1 report lost, 1 report lost"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			files, kills := test.plays(s.process("a"), s.process("b"))
			found, err := FindRepeats(files, kills)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range found {
				got = append(got, fmt.Sprintf("%s %s", r.Event, r.Why))
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("repeats = %q, want %q", strings.Join(got, ", "), test.want)
			}
		})
	}
}
