// Package batch divides the update of a workload into batches. A batch is a partition that moves: it
// says how many pods stay as they are, and the workload does the rest. All state is in the status of
// the workload. A status that is lost is made anew from the pods.
package batch

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const (
	// maxSizes bounds the sizes of a spec, and maxNamed the failed pods that a status names.
	maxSizes = 100
	maxNamed = 10
)

// Again is when to decide again after a status that the next decision goes by: by then the informer
// should have it.
const Again = 100 * time.Millisecond

// Update is an update of a workload.
type Update struct {
	// Revision is the name of the update revision, and Before the one that other pods have; "": there
	// are none.
	Revision, Before string
	// Partition is how many pods the spec leaves at their revision. Paused: it pauses updates.
	Partition int
	Paused    bool
	// Released is the value of the annotation [v1beta1.AnnotationNextBatch].
	Released string
	Now      time.Time
}

// Pods are the pods of a workload, as far as batches depend on them.
type Pods struct {
	// Wanted is how many pods the update reaches without a partition.
	Wanted int
	// Reached is how many pods have the update revision. Updated are those of them that count for the
	// batch, and Available the available ones of these.
	Reached, Updated, Available int
	// Old is how many pods have another revision, without those whose deletion a hook holds back.
	Old int
	// Failed are the names of updated pods that have failed, sorted.
	Failed []string
}

// Decision is what an update in batches does now.
type Decision struct {
	// Status is the new status; nil: the update is not divided.
	Status *v1beta1.BatchStatus
	// Partition is how many pods stay at their revision. The partition of the spec may leave more.
	Partition int
	// Stopped: no pod changes its revision.
	Stopped bool
	// After is when to decide again without a change; 0 means never.
	After time.Duration
}

// Validate returns an error for each field that cannot be followed. onDelete: pods are updated after a
// user deletes them.
func Validate(path *field.Path, b *v1beta1.UpdateBatches, onDelete bool) field.ErrorList {
	if b == nil {
		return nil
	}
	var all field.ErrorList
	if onDelete {
		all = append(all, field.Forbidden(path, "with the type OnDelete, users decide when a pod is updated"))
	}
	all = append(all, validateSizes(path.Child("sizes"), b.Sizes)...)
	if b.Interval != nil && b.Interval.Duration < 0 {
		all = append(all, field.Invalid(path.Child("interval"), b.Interval.Duration.String(), "a time can't be negative"))
	}
	if b.MaxFailed != nil {
		if n, err := amount(*b.MaxFailed); err != nil || n < 0 {
			all = append(all, field.Invalid(path.Child("maxFailed"), b.MaxFailed.String(), errAmount.Error()))
		}
	}
	return all
}

func validateSizes(path *field.Path, sizes []intstr.IntOrString) field.ErrorList {
	if len(sizes) == 0 {
		return field.ErrorList{field.Required(path, "batches have sizes, such as [10%, 30%, 60%]")}
	}
	if len(sizes) > maxSizes {
		return field.ErrorList{field.TooMany(path, len(sizes), maxSizes)}
	}
	var all field.ErrorList
	percent := 0
	for i, size := range sizes {
		n, err := amount(size)
		if size.Type == intstr.String {
			percent += n
		}
		switch {
		case err != nil:
		case n < 1:
			err = errors.New("a batch has at least one pod")
		case size.Type == intstr.String && percent > 100:
			err = errors.New("the percentages are more than 100% in all")
		}
		if err != nil {
			all = append(all, field.Invalid(path.Index(i), size.String(), err.Error()))
		}
	}
	return all
}

var errAmount = errors.New("it is neither a number of pods nor a percentage of 0% to 100%")

// amount returns a number of pods, or the number in a percentage.
func amount(v intstr.IntOrString) (int, error) {
	if v.Type == intstr.Int {
		return int(v.IntVal), nil
	}
	digits, is := strings.CutSuffix(v.StrVal, "%")
	n, err := strconv.ParseUint(digits, 10, 8)
	if !is || err != nil || n > 100 {
		return 0, errAmount
	}
	return int(n), nil
}

// Ends returns how many pods are updated at the end of each batch: in the end all that are wanted. No
// batch is empty. 30 % and 70 % of 6 pods end at 2 and 6.
func Ends(sizes []intstr.IntOrString, wanted int) []int {
	var ends []int
	pods, percent, last := 0, 0, 0
	for _, size := range sizes {
		n, _ := amount(size) // Validate has checked it
		if size.Type == intstr.String {
			percent += n
		} else {
			pods = min(pods+n, wanted)
		}
		if end := min(max(pods+(percent*wanted+99)/100, last+1), wanted); end > last {
			ends, last = append(ends, end), end
		}
	}
	if last < wanted {
		ends = append(ends, wanted)
	}
	return ends
}

// Decide returns what an update in batches does now. was is the status so far; nil: there is none. The
// limits are those of the batch in was: the next batch begins with the status that says so.
//
// A batch that has begun never goes back, whatever happens to the numbers. If an update has not ended,
// the way back to the revision before is not divided: pods that are broken should not wait.
func Decide(b *v1beta1.UpdateBatches, was *v1beta1.BatchStatus, u Update, p Pods) Decision {
	if b == nil {
		return Decision{}
	}
	ends := Ends(b.Sizes, p.Wanted)
	s := begin(b, ends, was, u, p)
	if s == nil {
		return Decision{}
	}
	d := Decision{Status: s, Partition: p.Wanted - endOf(ends, s.Number)}
	s.Batch = fmt.Sprintf("%d/%d", s.Number, max(len(ends), 1))
	if s.Reason == v1beta1.BatchDone {
		return d // pods that fail later, or come later, are no part of the update
	}
	s.Reached = max(s.Reached, int32(p.Reached)) //nolint:gosec // of pods
	end := p.Wanted - max(d.Partition, min(u.Partition, p.Wanted))
	complete := p.Updated >= end && p.Available >= end && p.Old <= p.Wanted-end // surplus old ones are gone
	if now := wholeSecond(u.Now); !complete {
		s.CompleteSince = nil
	} else if s.CompleteSince == nil || now.Before(s.CompleteSince) { // a clock went back
		s.CompleteSince = &now
	}
	s.Failed, s.FailedPods = int32(len(p.Failed)), p.Failed[:min(len(p.Failed), maxNamed)] //nolint:gosec // of pods
	last, allowed := int(s.Number) >= len(ends), maxFailed(b, p.Wanted)
	left := time.Duration(0)
	if complete && b.Interval != nil {
		left = s.CompleteSince.Add(b.Interval.Duration).Sub(u.Now)
	}
	switch {
	case len(p.Failed) > allowed && !back(s):
		d.Stopped = true
		wait(s, v1beta1.BatchFailed, "failed: %s; maxFailed is %d", named(p.Failed), allowed)
	case u.Paused && (!complete || !last || u.Partition > d.Partition):
		wait(s, v1beta1.BatchPaused, "paused, with %d of %d pods updated", min(p.Updated, end), end)
	case !complete:
		wait(s, v1beta1.BatchUpdating, "%d of %d pods updated, %d available", min(p.Updated, end), end, min(p.Available, end))
	case u.Partition > d.Partition:
		wait(s, v1beta1.BatchPartition, "partition %d of the spec leaves %d pods of the batch as they are", u.Partition, min(u.Partition, p.Wanted)-d.Partition)
	case last:
		s.From, s.Ahead = "", nil // a later update to that revision is one like any other
		wait(s, v1beta1.BatchDone, "all %d pods updated and available", p.Wanted)
	case left > 0:
		d.After = left
		wait(s, v1beta1.BatchInterval, "the interval ends at %s", u.Now.Add(left).UTC().Format(time.RFC3339))
	case !b.Auto && !released(u, s, s.Number+1):
		wait(s, v1beta1.BatchApproval, "the next batch begins after 'keelson workload next-batch'")
	default:
		s.Number, s.Since, s.CompleteSince = s.Number+1, wholeSecond(u.Now), nil
		d.After = Again
		wait(s, v1beta1.BatchUpdating, "the batch begins")
	}
	s.Batch = fmt.Sprintf("%d/%d", s.Number, max(len(ends), 1))
	return d
}

// wholeSecond returns a time as an object keeps it, which has no fractions of a second. It rounds up, so
// that no interval is shorter than it should be.
func wholeSecond(t time.Time) metav1.Time {
	return metav1.NewTime(t.Add(time.Second - time.Nanosecond).Truncate(time.Second))
}

// begin returns the status of the batch that goes on, or of the first one; nil: no update is divided.
func begin(b *v1beta1.UpdateBatches, ends []int, was *v1beta1.BatchStatus, u Update, p Pods) *v1beta1.BatchStatus {
	now, last := wholeSecond(u.Now), int32(len(ends)) //nolint:gosec // at most maxSizes and one more
	s := &v1beta1.BatchStatus{Revision: u.Revision, From: u.Before, Started: now, Since: now}
	same := was != nil && was.Revision == u.Revision
	done := same && was.Reason == v1beta1.BatchDone
	if same {
		s = was.DeepCopy()
	}
	switch {
	case done && p.Old == 0, same && back(was): // nothing more is divided, however many pods are wanted now
		s.Number = last
	case same && !done && was.Sizes == sizesOf(b): // the batch goes on
	case same: // with other sizes, or more pods than those that were updated
		s.Number, s.Since, s.From, s.Reason = through(ends, p.Reached), now, cmp.Or(was.From, u.Before), v1beta1.BatchUpdating
	case was != nil && was.From != "" && was.From == u.Revision: // back to where the pods came from
		s.Number, s.From = last, ""
	case u.Before == "" || u.Before == u.Revision:
		return nil
	default:
		s.Number = through(ends, p.Reached)
		if int(s.Number) < len(ends) && endOf(ends, s.Number) < p.Reached {
			s.Number++ // the status of this batch was lost
		}
		if was != nil && was.From != "" {
			s.From = was.From // the revision of an update that did not end is not where pods go back to
		}
	}
	s.Number, s.Sizes = max(min(s.Number, last), 1), sizesOf(b)
	return s
}

// through returns the last batch whose pods have come to the revision, at least the first.
func through(ends []int, reached int) int32 {
	number := int32(1)
	for int(number) < len(ends) && endOf(ends, number+1) <= reached {
		number++
	}
	return number
}

// back reports whether an update takes pods back to the revision that they had before an update that did
// not end.
func back(s *v1beta1.BatchStatus) bool { return s.From == "" && s.Reason != v1beta1.BatchDone }

// sizesOf returns the sizes as text.
func sizesOf(b *v1beta1.UpdateBatches) string {
	var all []string
	for _, size := range b.Sizes {
		all = append(all, size.String())
	}
	return strings.Join(all, " ")
}

// endOf returns how many pods are updated at the end of a batch.
func endOf(ends []int, number int32) int {
	if len(ends) == 0 {
		return 0
	}
	return ends[number-1]
}

func maxFailed(b *v1beta1.UpdateBatches, wanted int) int {
	if b.MaxFailed == nil {
		return 0
	}
	n, _ := amount(*b.MaxFailed) // Validate has checked it
	if b.MaxFailed.Type == intstr.String {
		return n * wanted / 100
	}
	return n
}

// Release returns the value of the annotation that releases the batches of an update up to one.
func Release(of *v1beta1.BatchStatus, number int32) string {
	return fmt.Sprintf("%s@%d/%d", of.Revision, of.Started.Unix(), number)
}

// released reports whether the annotation releases a batch of an update.
func released(u Update, of *v1beta1.BatchStatus, number int32) bool {
	update, upTo, _ := strings.Cut(u.Released, "/")
	n, err := strconv.ParseInt(upTo, 10, 32)
	return err == nil && update+"/" == strings.TrimSuffix(Release(of, 0), "0") && n >= int64(number)
}

func wait(s *v1beta1.BatchStatus, reason v1beta1.BatchReason, format string, args ...any) {
	s.Reason, s.Message = reason, fmt.Sprintf(format, args...)
}

// named returns the names of the first pods, and how many more there are.
func named(pods []string) string {
	text := strings.Join(pods[:min(len(pods), maxNamed)], ", ")
	if more := len(pods) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", text, more)
	}
	return text
}
