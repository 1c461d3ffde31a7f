package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer/redact"
)

// checkRun is the Job of a check on the cluster: requested, running, or finished. It is forgotten
// after the Job was deleted.
type checkRun struct {
	applier.FoundCheck

	state   v1alpha1.CheckState // empty: the Job was found, and its outcome is unknown
	message string
	// stop ends the goroutine that runs the Job, which then closes done; nil: there is none.
	stop context.CancelFunc
	done chan struct{}
}

// checks are the runs of a cluster, by component and run.
type checks map[string]map[string]*checkRun

func (c checks) put(r *checkRun) {
	if c[r.Component] == nil {
		c[r.Component] = map[string]*checkRun{}
	}
	c[r.Component][r.Run] = r
}

func (c checks) drop(r *checkRun) {
	delete(c[r.Component], r.Run)
	if len(c[r.Component]) == 0 {
		delete(c, r.Component)
	}
}

// recall restores the runs that the hub shows for a component.
func (c checks) recall(s *v1alpha1.DeliveryStatus) {
	for _, is := range s.Checks {
		namespace, name, _ := strings.Cut(is.Job, "/")
		c.put(&checkRun{
			FoundCheck: applier.FoundCheck{Component: s.Component, Run: is.Run, Namespace: namespace, Name: name},
			state:      is.State, message: is.Message,
		})
	}
}

// runsOf returns the runs of a component with a known state, as its status shows them.
func (c checks) runsOf(component string) []v1alpha1.DeliveryCheck {
	var out []v1alpha1.DeliveryCheck
	for _, r := range c[component] {
		if r.state != "" {
			out = append(out, v1alpha1.DeliveryCheck{Run: r.Run, Job: r.Namespace + "/" + r.Name, State: r.state, Message: r.message})
		}
	}
	slices.SortFunc(out, func(x, y v1alpha1.DeliveryCheck) int { return cmp.Compare(x.Run, y.Run) })
	return out
}

// checkJobs run the Jobs of pipeline checks on one cluster. mu guards runs, and the fields of each
// run. One goroutine runs one Job.
type checkJobs struct {
	cluster  string
	log      *slog.Logger
	redactor *redact.Redactor
	wants    *applier.DesiredBuilder
	board    *rollout.Cache // nil: no check is requested
	// snapshot returns what is known of a component now; queue queues the component.
	snapshot func(component string) snapshot
	queue    func(component string)

	running sync.WaitGroup // goroutines that run Jobs

	mu   sync.Mutex
	runs checks
}

// recall restores the runs that the hub shows.
func (j *checkJobs) recall(shown []v1alpha1.DeliveryStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range shown {
		j.runs.recall(&shown[i])
	}
}

// runsOf returns the runs of a component with a known state, as its status shows them.
func (j *checkJobs) runsOf(component string) []v1alpha1.DeliveryCheck {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.runs.runsOf(component)
}

// attend runs the Jobs that the component's rollout requests on this cluster, and deletes the Jobs
// that are no longer requested. Until then the outcome stays known and shown. A retry finds Jobs by
// their names, and a new process finds them by their label. A pinned component has no Jobs.
func (j *checkJobs) attend(ctx context.Context, component string, pinned bool) error {
	s := j.snapshot(component)
	if j.board == nil || s.link == nil || s.unreachable != nil {
		return nil //nolint:nilerr // a ping shows when to go on
	}
	asked, known := j.askedJobs(s, component, pinned)
	if !known {
		return nil
	}
	j.mu.Lock()
	over := []*checkRun{}
	for run, is := range j.runs[component] {
		if !slices.ContainsFunc(asked, func(one rollout.AskedJob) bool { return one.Run == run }) {
			over = append(over, is)
		}
	}
	for _, one := range asked {
		j.beginCheckLocked(ctx, s, one)
	}
	j.mu.Unlock()
	for _, is := range over {
		if err := j.endCheck(ctx, s, is); err != nil {
			j.log.Warn("the Job of a check is still there; trying again", "component", component, "error", err)
			return err
		}
	}
	return nil
}

// askedJobs returns the Jobs to run here; false: not known. There are none if the cluster takes no
// part in the rollout, or if the component is absent, paused, pinned or without a pipeline.
func (j *checkJobs) askedJobs(s snapshot, component string, pinned bool) (asked []rollout.AskedJob, known bool) {
	d := s.delivery
	switch {
	case len(s.cluster.Problems) > 0:
		return nil, false
	case d == nil:
		return nil, true
	case len(d.Problems) > 0: // the problems of its pipeline are among them
		return nil, false
	case s.fleet.PipelineOf(component) == nil, d.Absent, d.Paused, s.cluster.Spec.Paused, pinned:
		return nil, true
	}
	r, err := j.board.Of(s.fleet, component)
	if err != nil {
		return nil, false // queued again when the hub has answered
	}
	entry := entryOf(r, j.cluster)
	if entry == nil {
		return nil, true
	}
	return slices.DeleteFunc(rollout.JobsAsked(&r.Status), func(one rollout.AskedJob) bool { return one.Stage != entry.Stage }), true
}

// find finds by their label the Jobs that an earlier process left in the cluster, and retries
// until that succeeds. If no check has a Job, it makes no call.
func (j *checkJobs) find(ctx context.Context, link *link) {
	s := j.snapshot("")
	j.mu.Lock()
	due := j.board != nil && (len(j.runs) > 0 || runsJobs(s.fleet, s.cluster))
	j.mu.Unlock()
	backoff := queue.NewBackoff(queue.RetryFirst, refusedLast)
	for due {
		err := link.gate.wait(ctx)
		var found []applier.FoundCheck
		if err == nil {
			found, err = link.cluster.Checks(ctx)
		}
		if err == nil {
			j.found(s.fleet.Spec.Name, found)
			return
		}
		if ctx.Err() != nil {
			return
		}
		j.log.Warn("it is not known which Jobs of checks were left; trying again", "error", err)
		if !backoff.Wait(ctx) {
			return
		}
	}
}

// found adds the found Jobs of this fleet, and queues their components.
func (j *checkJobs) found(fleet string, found []applier.FoundCheck) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, is := range found {
		if is.Component == "" || is.Fleet != fleet || j.runs[is.Component][is.Run] != nil {
			continue
		}
		j.runs.put(&checkRun{FoundCheck: is})
		j.queue(is.Component)
	}
}

// runsJobs reports whether some check of a cluster's stages has a Job.
func runsJobs(f *registry.Fleet, c *registry.Cluster) bool {
	return slices.ContainsFunc(f.Pipelines, func(p *registry.Pipeline) bool { return p.RunsJobs(c.Spec.Labels) })
}

// beginCheckLocked runs a Job, unless it is running or has finished.
func (j *checkJobs) beginCheckLocked(ctx context.Context, s snapshot, one rollout.AskedJob) {
	component := s.delivery.Component
	is := j.runs[component][one.Run]
	if is == nil {
		is = &checkRun{
			FoundCheck: applier.FoundCheck{Component: component, Run: one.Run, Namespace: s.delivery.Version.Spec.Namespace, Name: one.Name(component)},
		}
		j.runs.put(is)
	}
	if is.stop != nil || is.state == v1alpha1.CheckPassed || is.state == v1alpha1.CheckFailed {
		return
	}
	var waiting context.Context
	waiting, is.stop = context.WithCancel(ctx)
	is.done = make(chan struct{})
	do := &doneCheck{jobs: j, is: is, asked: one, link: s.link, begun: is.state == v1alpha1.CheckRunning}
	j.running.Go(func() {
		defer close(do.is.done)
		do.run(ctx, waiting)
	})
}

// endCheck stops and deletes a Job, and forgets it.
func (j *checkJobs) endCheck(ctx context.Context, s snapshot, is *checkRun) error {
	j.mu.Lock()
	stop, done := is.stop, is.done
	j.mu.Unlock()
	if stop != nil {
		stop()
		<-done // else the Job might be created after its deletion
	}
	want := applier.Desired{Component: is.Component}
	if d := s.delivery; d != nil && d.Version != nil {
		want.Namespace, want.ServiceAccount = d.Version.Spec.Namespace, d.Version.Spec.ServiceAccount
	}
	if err := s.link.cluster.EndCheck(ctx, want, is.FoundCheck); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs.drop(is)
	return nil
}

// doneCheck runs one Job until its outcome is known.
type doneCheck struct {
	jobs  *checkJobs
	is    *checkRun
	asked rollout.AskedJob
	link  *link
	begun bool // the Job was created
}

// run retries until the outcome is known, or waiting ends. waiting ends before ctx, so that a
// creation in flight is completed: otherwise it would be unknown whether the Job exists.
func (c *doneCheck) run(ctx, waiting context.Context) {
	backoff := queue.NewBackoff(queue.RetryFirst, queue.RetryLast)
	refused := queue.NewBackoff(refusedFirst, refusedLast)
	for {
		err := c.link.gate.wait(waiting)
		if err == nil {
			err = c.try(ctx, waiting)
		}
		var failed *applier.CheckError
		switch {
		case err == nil:
			c.note(v1alpha1.CheckPassed, "")
			return
		case errors.As(err, &failed):
			c.note(v1alpha1.CheckFailed, failed.Message)
			return
		case waiting.Err() != nil:
			return // the outcome is unknown
		case !c.begun:
			c.note(v1alpha1.CheckWaiting, err.Error())
		}
		next := backoff
		if applier.Refused(err) {
			next = refused
		}
		if !next.Wait(waiting) {
			return
		}
	}
}

// try creates or finds the Job, and waits for its end.
func (c *doneCheck) try(ctx, waiting context.Context) error {
	job, err := c.jobs.checkJob(c.is.Component, c.asked)
	if err != nil {
		return err
	}
	job.Want.Namespace = c.is.Namespace // the namespace in which the run began
	job.Confirm = c.confirm
	live, err := c.link.cluster.BeginCheck(ctx, job, c.begun)
	if err != nil {
		return err
	}
	c.begun = true
	c.note(v1alpha1.CheckRunning, "")
	return c.link.cluster.AwaitCheck(waiting, job, live)
}

// confirm asks the hub whether the run is still requested. The board may lag, and show a run that
// another process has finished and deleted.
func (c *doneCheck) confirm(ctx context.Context) error {
	s, err := c.jobs.board.Now(ctx, c.is.Component)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(rollout.JobsAsked(s), func(one rollout.AskedJob) bool { return one.Run == c.is.Run }) {
		return errors.New("its rollout does not ask for it any more")
	}
	return nil
}

// checkText bounds a message in bytes: the Rollout shows the message of each waiting cluster.
const checkText = 500

// note records the state of the Job, and queues the component if the state changed.
func (c *doneCheck) note(state v1alpha1.CheckState, message string) {
	if message = strings.Join(strings.Fields(message), " "); len(message) > checkText {
		message = strings.ToValidUTF8(message[:checkText], "") + "…"
	}
	j := c.jobs
	j.mu.Lock()
	news := c.is.state != state || c.is.message != message
	c.is.state, c.is.message = state, message
	j.mu.Unlock()
	if !news {
		return
	}
	j.log.Info("the Job of a check", "component", c.is.Component, "stage", c.asked.Stage, "check", c.asked.Check,
		"job", c.is.Namespace+"/"+c.is.Name, "state", state, "message", j.redactor.Text(message))
	j.queue(c.is.Component)
}

// checkJob builds a Job from its template in git. A [*applier.CheckError] means that the template
// is not a valid Job.
func (j *checkJobs) checkJob(component string, one rollout.AskedJob) (applier.CheckJob, error) {
	s := j.snapshot(component)
	pipeline := s.fleet.PipelineOf(component)
	r, err := j.board.Of(s.fleet, component)
	switch {
	case err != nil:
		return applier.CheckJob{}, err
	case r == nil || pipeline == nil || s.delivery == nil || s.delivery.Version == nil:
		return applier.CheckJob{}, errors.New("it is no longer in git")
	}
	text, there := pipeline.Jobs[one.Template]
	if !there || rollout.TemplateHash(text) != one.Hash {
		return applier.CheckJob{}, fmt.Errorf("this process has not read %s as of revision %.12s", one.Template, one.Revision)
	}
	names := registry.Names{Component: component, Pipeline: r.Status.Pipeline, Stage: one.Stage, Cluster: j.cluster}
	for i := range r.Status.Clusters {
		if entry := &r.Status.Clusters[i]; entry.Stage == one.Stage {
			names.Clusters = append(names.Clusters, entry.Name)
		}
	}
	job, err := registry.ParseJob(names.Expand(text))
	if err != nil {
		return applier.CheckJob{}, &applier.CheckError{Message: one.Template + ": " + err.Error()}
	}
	want, err := j.wants.Build(s.fleet, s.delivery, nil)
	if err != nil {
		return applier.CheckJob{}, err
	}
	return applier.CheckJob{
		Want: want, Name: one.Name(component), Run: one.Run, Fleet: s.fleet.Spec.Name, Job: job,
		Source: yamlfile.Position{File: one.Template, Line: 1, Column: 1, Revision: one.Revision},
	}, nil
}
