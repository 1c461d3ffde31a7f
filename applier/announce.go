package applier

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

const (
	// intentsName is the Secret with the announcements of all components of a cluster.
	intentsName = "keelson-intents"
	keyIntents  = "intents"
	// announcedObjects bounds what one announcement names. A pass that updates more writes
	// its intents into the record.
	announcedObjects = 100
	// maxAnnouncements bounds the bytes of the Secret beyond which nothing is announced any
	// more: claims always find room. maxClaims bounds those that are kept, of components that
	// were removed long ago above all.
	maxAnnouncements = secretSize / 2
	maxClaims        = 2 * maxRecords
	// intentsValues bounds the JSON values of the Secret: it is read from a cluster.
	intentsValues = 100_000
	// announceTries is how often a write of announcements begins anew because another
	// session wrote between its read and its write.
	announceTries = 10
)

// claimedError says that another session has said something of a component that this one does
// not know, or is about to take it over, or has done so.
type claimedError struct{ by announcement }

func (e *claimedError) Error() string {
	return fmt.Sprintf("another session said otherwise before: %s, with the record %s", cmp.Or(e.by.Writer, "a claim"), cmp.Or(e.by.Record, e.by.Claimed))
}

// errNoRoom says that an announcement is left to the record.
var errNoRoom = errors.New("too much is announced")

// An announcement says which objects a session is about to update, as an intent of a record
// does. Those of many components are written together, into one Secret. It holds while the
// component's record has one resourceVersion: whatever is written to the record ends it.
//
// A session that takes a component over announces first, too: that is its claim. So one of two
// sessions finds what the other has said. A claim stays in the Secret when the record is
// written: a session that still has the record from before may announce nothing any more.
type announcement struct {
	Record  string      `json:"record,omitempty"` // the resourceVersion of the component's record
	Writer  string      `json:"writer,omitempty"`
	Objects []differ.ID `json:"objects,omitempty"`
	// Claimed is the resourceVersion that the record had when it was last taken over.
	Claimed string `json:"claimed,omitempty"`
}

func (a *announcement) equal(b *announcement) bool {
	return a == b || a != nil && b != nil && a.Record == b.Record && a.Writer == b.Writer && a.Claimed == b.Claimed && slices.Equal(a.Objects, b.Objects)
}

// before reports whether a resourceVersion is older than another. What can't be compared is
// not; the empty one is older than all.
func before(version, than string) bool {
	if version == "" || than == "" {
		return than != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// announcer reads and writes the announcements of one cluster for one session.
type announcer struct {
	// writer is the session, and which connection of it: what another one has announced, and
	// does not answer for any more, is taken over as if it were another session's.
	writer string
	// load reads the Secret; nil: there is none. save creates it, or replaces the one with its
	// resourceVersion, and returns the new one.
	load func(context.Context) (*corev1.Secret, error)
	save func(context.Context, *corev1.Secret) (string, error)

	mu sync.Mutex
	// version of the Secret that has all, empty where there is none; known says whether it
	// was read.
	version string
	known   bool
	all     map[string]announcement // by component
	own     map[string]announcement // those of this session that may still hold
	waiting []*announcing
	writing bool
}

// announcing is an announcement that is to be written.
type announcing struct {
	component, record string
	objects           []differ.ID
	claim             bool          // to take the component over
	retract           bool          // nothing more: what was announced is done, and the record as it was
	knows             *announcement // what was found with the record, of a session before
	voids             *announcement // what is known to be of no record that this cluster ever had
	done              chan error
}

func (c *Cluster) newAnnouncer() *announcer {
	load := func(ctx context.Context) (*corev1.Secret, error) { return c.getSecret(ctx, intentsName) }
	return &announcer{writer: c.writer.Identity + "#" + rand.Text()[:8], load: load, save: c.writeSecret, own: map[string]announcement{}}
}

// found returns what was announced about a component whose record has a resourceVersion;
// nil: nothing, or nothing that still holds.
func (n *announcer) found(ctx context.Context, component, version string) (*announcement, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.read(ctx); err != nil {
		return nil, err
	}
	a := n.still(component, n.all[component])
	if a.Record == "" || a.Record != version {
		return nil, nil
	}
	return &a, nil
}

// read reads the Secret, if that was not done. The caller holds the lock.
func (n *announcer) read(ctx context.Context) error {
	if n.known {
		return nil
	}
	s, err := n.load(ctx)
	if err != nil {
		return err
	}
	all, version := map[string]announcement{}, ""
	if s != nil {
		version = s.ResourceVersion
		meter := jsonsize.Meter{MaxBytes: secretSize, MaxValues: intentsValues, Each: jsonsize.Never}
		err := meter.Count(s.Data[keyIntents])
		if err == nil {
			err = json.Unmarshal(s.Data[keyIntents], &all)
		}
		if err != nil {
			return fmt.Errorf("decode Secret %s/%s, which has what is about to be updated (delete it when no Keelson writes to the cluster): %w", v1alpha1.Namespace, intentsName, err)
		}
	}
	n.all, n.version, n.known = all, version, true
	return nil
}

// write writes an announcement, together with those that come while another write is on
// its way. The error is a [claimedError] where another session has announced something
// that the caller does not know.
func (n *announcer) write(ctx context.Context, a *announcing) error {
	a.done = make(chan error, 1)
	n.mu.Lock()
	n.waiting = append(n.waiting, a)
	first := !n.writing
	n.writing = true
	n.mu.Unlock()
	if first {
		go n.writeAll(ctx)
	}
	return <-a.done
}

// writeAll writes what waits until nothing does. It is for others than the caller, too, so it
// does not end with the context.
func (n *announcer) writeAll(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.waiting) > 0 {
		batch := n.waiting
		n.waiting = nil
		ctx, cancel := outlive(ctx)
		refused, err := n.writeBatch(ctx, batch)
		cancel()
		for _, a := range batch {
			if r := refused[a]; r != nil {
				a.done <- r
			} else {
				a.done <- err
			}
		}
	}
	n.writing = false
}

// writeBatch writes some announcements at once, and says which of them may not be made. The
// caller holds the lock, which others get while the request is on its way.
func (n *announcer) writeBatch(ctx context.Context, batch []*announcing) (refused map[*announcing]error, err error) {
	for range announceTries {
		fresh := !n.known
		if err := n.read(ctx); err != nil {
			return nil, err
		}
		var next map[string]announcement
		next, refused = n.merged(batch)
		if len(refused) > 0 && !fresh {
			n.known = false // what refuses it may not be so any more
			continue
		}
		if len(refused) == len(batch) {
			return refused, nil
		}
		var version string
		if version, err = n.send(ctx, next); err == nil {
			n.all, n.version = next, version
			return refused, nil
		}
		n.known = false // it may have come through
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			break
		}
	}
	return refused, err
}

// merged is what the Secret is to hold: what other sessions announced, what of this one may
// still hold, and the batch without what is refused of it.
func (n *announcer) merged(batch []*announcing) (map[string]announcement, map[*announcing]error) {
	next, refused := map[string]announcement{}, map[*announcing]error{}
	for component, is := range n.all {
		if is = n.still(component, is); is.Record != "" || is.Claimed != "" {
			next[component] = is
		}
	}
	for component, own := range n.own { // somebody may have deleted the Secret
		if is := next[component]; before(is.Record, own.Record) && (before(is.Claimed, own.Record) || is.Claimed == own.Claimed) {
			next[component] = own
		}
	}
	forgetOldest(next)
	room := maxAnnouncements
	for component, is := range next {
		room -= is.size(component)
	}
	for _, a := range batch {
		if a.retract {
			continue // it is no longer among its own
		}
		is := next[a.component]
		entry := announcement{Record: a.record, Writer: n.writer, Objects: slices.Clone(a.objects), Claimed: is.Claimed}
		if a.claim {
			entry.Claimed = a.record
		}
		switch size := entry.size(a.component); {
		case !n.mayFollow(a, &is), !a.claim && !before(next[forgotten].Claimed, a.record):
			refused[a] = &claimedError{is}
			delete(n.own, a.component)
		case !a.claim && room < size:
			refused[a] = errNoRoom
		default:
			room -= size
			next[a.component], n.own[a.component] = entry, entry // it may come through without an answer
		}
	}
	return next, refused
}

// forgotten stands in the place of a component: its Claimed is that of the newest claim that
// was dropped.
const forgotten = ""

// forgetOldest drops half of the claims where there are too many. Of a component that is left,
// too, a session may announce nothing for a record as old as they are.
func forgetOldest(all map[string]announcement) {
	if len(all) <= maxClaims {
		return
	}
	var claims []string
	for component, is := range all {
		if is.Record == "" && component != forgotten {
			claims = append(claims, component)
		}
	}
	slices.SortFunc(claims, func(a, b string) int {
		switch x, y := all[a].Claimed, all[b].Claimed; {
		case before(x, y):
			return -1
		case before(y, x):
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, component := range claims[:len(claims)/2] {
		if is := all[component]; before(all[forgotten].Claimed, is.Claimed) {
			all[forgotten] = announcement{Claimed: is.Claimed}
		}
		delete(all, component)
	}
}

// size is about what an announcement takes in the Secret.
func (a *announcement) size(component string) int {
	n := len(component) + len(a.Record) + len(a.Writer) + len(a.Claimed) + 64
	for _, id := range a.Objects {
		n += len(id.Group) + len(id.Kind) + len(id.Namespace) + len(id.Name) + 64
	}
	return n
}

// still is what of an announcement may hold.
func (n *announcer) still(component string, is announcement) announcement {
	if _, holds := n.own[component]; is.Writer == n.writer && !holds {
		return announcement{Claimed: is.Claimed}
	}
	return is
}

// mayFollow reports whether an announcement may take the place of another one. That is so where
// the other is of an older record, or this session's, or where this session takes over what it
// was about; and where no session took over since the record was read.
func (n *announcer) mayFollow(a *announcing, is *announcement) bool {
	switch {
	case a.claim && a.voids != nil && is.equal(a.voids):
		return true
	case is.Record == a.record && is.Writer == n.writer:
		// Its own claim, too: whom it was taken from may still write the record.
		return a.claim || before(is.Claimed, a.record)
	case before(is.Record, a.record), a.claim && is.equal(a.knows):
		return before(is.Claimed, a.record) || a.claim && is.Claimed == a.record
	}
	return false
}

func (n *announcer) send(ctx context.Context, all map[string]announcement) (version string, err error) {
	data, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("encode announcements: %w", err)
	}
	if len(data) > secretSize {
		return "", fmt.Errorf("announcements take %d bytes, more than fit into a Secret", len(data))
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: intentsName, Namespace: v1alpha1.Namespace, ResourceVersion: n.version},
		Type:       "keelson.io/intents", Data: map[string][]byte{keyIntents: data},
	}
	n.mu.Unlock()
	defer n.mu.Lock()
	return n.save(ctx, s)
}

// over says that what was announced of a component is done or not begun, or that its record
// has another resourceVersion.
func (n *announcer) over(component string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.own, component)
}

// retract takes back what was announced of a component, where the record says no more than
// before: else the next session would touch what nothing was on its way to. Without it that is
// all that happens, so an error is none of the apply's.
func (n *announcer) retract(ctx context.Context, component string) {
	n.over(component)
	_ = n.write(ctx, &announcing{component: component, retract: true})
}

// takeIn adds to a record what was announced since it was written.
func (c *Cluster) takeIn(ctx context.Context, r *record) error {
	a, err := c.announcer.found(ctx, r.Component, r.version)
	if err != nil || a == nil {
		return err
	}
	r.announced = a
	for _, id := range a.Objects {
		// What the inventory lacks can't have been announced: only what it has is updated.
		if o := r.find(id); o != nil && o.Intent == "" {
			o.Intent = IntentUpdate
		}
	}
	if a.Writer != c.announcer.writer {
		r.Writer = a.Writer // and so this session takes it over, as it would from who wrote it
	}
	return nil
}

// takeOver asks whether this session may take a component over, where another one wrote its
// record last, and says that it does.
func (c *Cluster) takeOver(ctx context.Context, old *record) error {
	if old.Writer == c.writer.Identity {
		return nil
	}
	if err := c.confirm(ctx); err != nil {
		return err
	}
	return c.claim(ctx, old)
}

// claim announces that this session takes a component over. From then on no other one can
// announce what this one would not find. What it found stays announced until its first write
// of the record.
func (c *Cluster) claim(ctx context.Context, old *record) error {
	if old.version == "" {
		return nil // nothing is announced of what has no record
	}
	a := &announcing{component: old.Component, record: old.version, claim: true, knows: old.announced}
	if old.announced != nil {
		a.objects = old.announced.Objects
	}
	err := c.announcer.write(ctx, a)
	refusal, refused := errors.AsType[*claimedError](err)
	if refused && (before(old.version, refusal.by.Record) || before(old.version, refusal.by.Claimed)) {
		// A record is as new as what is said of it, unless that is from another cluster, or from
		// before this one was set back.
		head, getErr := c.getSecret(ctx, recordPrefix+old.Component)
		if getErr != nil {
			return getErr
		}
		if head != nil && head.ResourceVersion == old.version {
			a.voids = &refusal.by
			err = c.announcer.write(ctx, a)
			_, refused = errors.AsType[*claimedError](err)
		}
	}
	if refused {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	return err
}

// announce says what this pass is about to update, where that is all that it does, and the
// session the last that wrote the record. False: the record has to say it.
func (a *applying) announce(ctx context.Context) bool {
	if !a.announceable() {
		return false
	}
	var ids []differ.ID
	for _, b := range a.reach {
		for _, ch := range b.changes {
			ids = append(ids, ch.ID)
		}
	}
	err := a.cluster.announcer.write(ctx, &announcing{
		component: a.want.Component, record: a.record.version, objects: ids,
	})
	if err != nil {
		a.cluster.announcer.over(a.want.Component)
		return false // the record will say it, or what is the matter
	}
	a.announced = a.record.version
	return true
}

func (a *applying) announceable() bool {
	if a.record.version == "" || a.record.Writer != a.cluster.writer.Identity || a.record.open() || a.pinStale() || a.hooksPending(a.events()) {
		return false
	}
	n := 0
	for _, b := range a.reach {
		n += len(b.changes)
		for _, ch := range b.changes {
			if before, known := a.before[ch.ID]; ch.Op != differ.OpUpdate || !known || before.Content == nil || before.Intent != "" {
				return false
			}
		}
	}
	return n <= announcedObjects
}
