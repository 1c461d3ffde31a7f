package workloadtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

// Shared is a cluster that all tests of a package share, with the files of its run and the
// processes beside it.
type Shared struct {
	*Cluster

	Lab  *cluster.Lab
	Name string
	Dir  string // of all files
	Log  string // audit log
	ends []func() error
}

// Main runs the tests of a package on a cluster. program is the lab program, for real nodes.
// ready starts what the tests need on the cluster, and fails by package must.
func Main(m *testing.M, name, program string, change cluster.Change, ready func(context.Context, *Shared)) (code int) {
	ctx := context.Background() //nolint:forbidigo // the main function of a package's tests has none
	s := &Shared{Name: name}
	defer func() {
		if err := s.close(ctx, code != 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	err := must.Try(func() {
		set := must.Get(binaries.Find())
		s.Dir = must.Get(os.MkdirTemp("", "keelson-"+name+"-"))
		s.Lab = &cluster.Lab{Dir: filepath.Join(s.Dir, "clusters"), Program: program, Say: func(line string) { fmt.Println(line) }}
		must.Do(s.Lab.Up(ctx, name, change, set))
		s.Log = must.Get(s.Lab.AuditLog(name))
		s.Cluster = must.Get(Connect(s.Lab, name, set))
		ready(ctx, s)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// AtEnd has end called when the tests have run, before what was added earlier and before the
// cluster is removed.
func (s *Shared) AtEnd(end func() error) { s.ends = append([]func() error{end}, s.ends...) }

// Start starts a program that ends with the tests. Its log is NAME.log in Dir.
func (s *Shared) Start(name, program string, args ...string) *process.Child {
	child := must.Get(process.StartChild(process.Spec{Path: program, Log: filepath.Join(s.Dir, name+".log"), Args: args}, nil))
	s.AtEnd(func() error { return child.Stop(time.Minute) })
	return child
}

// close ends everything. The files of a failed run stay.
func (s *Shared) close(ctx context.Context, failed bool) error {
	var errs []error
	for _, end := range s.ends {
		errs = append(errs, end())
	}
	if s.Lab == nil {
		return errors.Join(errs...)
	}
	if failed {
		fmt.Fprintln(os.Stderr, "logs of this run stay in", s.Dir)
		errs = append(errs, SaveLogs(s.Lab, s.Name, s.Dir))
	}
	if errs = append(errs, s.Lab.Down(ctx, s.Name)); !failed && errors.Join(errs...) == nil {
		return os.RemoveAll(s.Dir) //nolint:wrapcheck // says which file it is
	}
	return errors.Join(errs...)
}
