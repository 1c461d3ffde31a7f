package fleet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

// started is the Unix time of the first commit. Each further commit of a stream is one
// minute later.
const started = 1_760_000_000

// stream writes the input format of git fast-import.
type stream struct {
	w       *bufio.Writer
	marks   map[string]int // of blobs, by content
	last    int            // the last mark
	commits int
}

// blob writes a content, unless it was written before, and returns its mark.
func (s *stream) blob(content []byte) int {
	if mark, ok := s.marks[string(content)]; ok {
		return mark
	}
	s.last++
	s.marks[string(content)] = s.last
	fmt.Fprintf(s.w, "blob\nmark :%d\n", s.last)
	s.data(content)
	return s.last
}

func (s *stream) data(content []byte) {
	fmt.Fprintf(s.w, "data %d\n%s\n", len(content), content)
}

// commit writes a commit on main. The parent is from, or if from is empty, the last
// commit of this stream. A nil content deletes the file.
func (s *stream) commit(message, from string, files map[string][]byte) {
	paths := slices.Sorted(maps.Keys(files))
	for _, path := range paths {
		if files[path] != nil {
			s.blob(files[path])
		}
	}
	s.last++
	fmt.Fprintf(s.w, "commit refs/heads/main\nmark :%d\ncommitter Fleet <fleet@example.com> %d +0000\n", s.last, started+60*s.commits)
	s.commits++
	s.data([]byte(message + "\n"))
	if from != "" {
		fmt.Fprintf(s.w, "from %s\n", from)
	}
	mark := s.last
	for _, path := range paths {
		if files[path] == nil {
			fmt.Fprintf(s.w, "D %s\n", path)
			continue
		}
		fmt.Fprintf(s.w, "M 100644 :%d %s\n", s.blob(files[path]), path)
	}
	s.last = mark
	fmt.Fprintln(s.w)
}

// tag sets a tag to the last commit of main.
func (s *stream) tag(name string) {
	fmt.Fprintf(s.w, "reset refs/tags/%s\nfrom refs/heads/main\n\n", name)
}

// importInto runs git fast-import with the input that write produces.
func importInto(ctx context.Context, dir string, write func(*stream)) error {
	cmd := exec.CommandContext(ctx, "git", "-C", dir, "fast-import", "--quiet", "--done", "--date-format=raw")
	var problems bytes.Buffer
	cmd.Stderr = &problems
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	err = feed(in, write)
	if waited := cmd.Wait(); waited != nil {
		return fmt.Errorf("git fast-import: %w: %s", waited, strings.TrimSpace(problems.String()))
	}
	return err
}

func feed(in io.WriteCloser, write func(*stream)) error {
	s := &stream{w: bufio.NewWriterSize(in, 1<<20), marks: map[string]int{}}
	write(s)
	fmt.Fprintln(s.w, "done")
	if err := errors.Join(s.w.Flush(), in.Close()); err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	return nil
}

// git runs git in a folder. It returns the output without the last line break.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(problems.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
