package applier

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/applier/span"
)

const (
	recordPrefix = "record-"
	// RecordLabel is on the Secrets of records; its value is the component.
	RecordLabel = "keelson.io/record"
	partLabel   = "keelson.io/record-part" // on the Secrets that hold a large record
	// recordFormat 2 has epochs and intents. Format 1 knew objects that were about
	// to be created, as intended; it is read, and written as 2.
	recordFormat = 2
	// secretSize keeps a Secret under the API server's 1 MiB with room for its
	// metadata.
	secretSize = 1000 << 10
	// recordLimit bounds the bytes of an unpacked record, recordValues its JSON values, and
	// recordParts its Secrets: the cluster may be hostile. A record of 1,000 objects has some 3 MB
	// and 150,000 values.
	recordLimit  = 32 << 20
	recordValues = 300_000
	recordParts  = 16
	// recordPage is how many records are listed at once: each may have 1 MiB.
	recordPage = 25
	// maxRecords is how many components may have a record in one cluster.
	maxRecords = 2_000
	// idsKept bounds how many objects of all records of one cluster are remembered by the hash of
	// their ID: 8 bytes each. The cluster may be hostile.
	idsKept = 500_000
	// rememberedBytes bounds the memory of all records of one cluster that are remembered. Other
	// records are read again when they are needed.
	rememberedBytes = 32 << 20
)

// The keys of a record's Secret, which has one of the first two.
const (
	keyRecord = "record" // the packed record
	keyParts  = "parts"  // the names of the Secrets that hold the parts, as JSON
	keyPart   = "part"   // content of such a Secret
)

// secretsClient reads and writes Keelson's own Secrets, in the encoding that is cheapest for an API
// server.
func secretsClient(config *rest.Config) (corev1client.SecretInterface, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the cluster
	}
	return c.Secrets(v1alpha1.Namespace), nil
}

// listRecords reads and remembers the records of all components, and finds the components with
// parts that no record names.
func (c *Cluster) listRecords(ctx context.Context) ([]string, error) {
	if _, err := c.key(ctx); err != nil { // records of another cluster say nothing about this one
		return nil, err
	}
	if _, err := c.announcer.entry(ctx, droppedClaims, ""); err != nil {
		return nil, err // read once here instead of once per record
	}
	var names []string
	err := eachPage("records", recordPage, maxRecords, func(o metav1.ListOptions) (int, string, error) {
		o.LabelSelector = RecordLabel
		page, err := c.secrets.List(ctx, o)
		if err != nil {
			return 0, "", fmt.Errorf("list records: %w", err)
		}
		for i := range page.Items {
			s := &page.Items[i]
			component := s.Labels[RecordLabel]
			if s.Name != recordPrefix+component {
				continue // not a Secret of Keelson
			}
			names = append(names, component)
			if c.same(component, s) {
				continue
			}
			c.forgetRecord(component)
			if r, err := c.decodeRecord(ctx, component, s); err == nil { // an error shows when the record is read
				c.remember(r)
			}
		}
		return len(page.Items), page.Continue, nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	c.mu.Lock()
	c.listed = true
	maps.DeleteFunc(c.settledCache, func(component string, _ *settledEntry) bool {
		_, found := slices.BinarySearch(names, component)
		return !found
	})
	maps.DeleteFunc(c.recordedObjects, func(component string, _ []uint64) bool {
		_, found := slices.BinarySearch(names, component)
		return !found
	})
	c.mu.Unlock()
	return names, c.findLitter(ctx)
}

// same reports whether a component is settled and its record is unchanged.
func (c *Cluster) same(component string, s *corev1.Secret) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.settledCache[component]
	return q != nil && q.version == recordVersionOf(s.ResourceVersion) && q.record == sumOf(s)
}

// sumOf identifies the record that a Secret begins: the names of further Secrets are hashes of
// their content.
func sumOf(s *corev1.Secret) fingerprint.Sum {
	return fingerprint.New(string(s.Data[keyRecord]), string(s.Data[keyParts])).Sum()
}

func (c *Cluster) fetchRecord(ctx context.Context, component string) (*record, error) {
	if _, err := c.key(ctx); err != nil { // the record of another cluster says nothing about this one
		return nil, err
	}
	for seen := ""; ; {
		s, err := c.getSecret(ctx, recordPrefix+component)
		if err != nil {
			return nil, err
		}
		if s == nil {
			return noRecord(component), nil
		}
		r, err := c.decodeRecord(ctx, component, s)
		if !errors.As(err, new(*missingPartError)) || s.ResourceVersion == seen {
			return r, err
		}
		seen = s.ResourceVersion // the head may have been replaced meanwhile, and its parts deleted
	}
}

func noRecord(component string) *record {
	return &record{Record: Record{Format: recordFormat, Component: component}}
}

func (c *Cluster) decodeRecord(ctx context.Context, component string, s *corev1.Secret) (*record, error) {
	packed, parts, err := c.join(ctx, s)
	if err != nil {
		return nil, err
	}
	r := &record{Record: Record{Component: component}, version: s.ResourceVersion, sum: sumOf(s), parts: parts}
	if r.size, err = c.discovery.schemas.packer.unpack(packed, &r.Record); err != nil {
		err = fmt.Errorf("decode Secret %s/%s: %w", s.Namespace, s.Name, err)
		if r.Format <= recordFormat { // a newer Keelson reads a later format
			err = fmt.Errorf("%w (restore the Secret from a backup; if you delete it, Keelson finds by managedFields what it applied, and leaves in place what git dropped meanwhile)", err)
		}
		return nil, &unreadableRecordError{err}
	}
	return r, c.mergeAnnouncement(ctx, r)
}

// unreadableRecordError reports that a record exists, and has no valid content.
type unreadableRecordError struct{ error }

func (e *unreadableRecordError) Unwrap() error { return e.error }

// join reads the Secrets that hold the parts of a record.
func (c *Cluster) join(ctx context.Context, head *corev1.Secret) (packed []byte, parts []string, err error) {
	if len(head.Data[keyParts]) == 0 {
		return head.Data[keyRecord], nil, nil
	}
	if err := json.Unmarshal(head.Data[keyParts], &parts); err != nil {
		return nil, nil, &unreadableRecordError{fmt.Errorf("decode the parts of Secret %s: %w", head.Name, err)}
	}
	if len(parts) > recordParts {
		return nil, nil, &unreadableRecordError{fmt.Errorf("the Secret %s names %d parts, more than %d", head.Name, len(parts), recordParts)}
	}
	for _, name := range parts {
		s, err := c.getSecret(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		if s == nil {
			return nil, nil, &missingPartError{name}
		}
		if len(packed)+len(s.Data[keyPart]) > recordParts*secretSize {
			return nil, nil, &unreadableRecordError{fmt.Errorf("the parts that the Secret %s names have more than %d bytes", head.Name, recordParts*secretSize)}
		}
		packed = append(packed, s.Data[keyPart]...)
	}
	return packed, parts, nil
}

// getSecret returns one of Keelson's own Secrets, or nil when there is none.
func (c *Cluster) getSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	s, err := c.secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: %w", v1alpha1.Namespace, name, err)
	}
	return s, nil
}

// writeRecord replaces the record in the cluster. A session's first write takes the component over,
// if it may. A conflict means that another session writes, too.
func (c *Cluster) writeRecord(ctx context.Context, old *record, content Record) (_ *record, err error) {
	ctx, s := span.Start(ctx, "record")
	defer func() { s.End(err) }()
	next, err := c.replaceRecord(ctx, old, content)
	if err != nil {
		c.forgetRecord(content.Component)
		return nil, fmt.Errorf("cluster %s: record of %s: %w", c.name, content.Component, err)
	}
	c.remember(next)
	if err := c.sweepParts(ctx, old, next); err != nil {
		return nil, fmt.Errorf("cluster %s: old parts of the record of %s: %w", c.name, content.Component, err)
	}
	return next, nil
}

func (c *Cluster) replaceRecord(ctx context.Context, old *record, content Record) (*record, error) {
	content.Format, content.Epoch, content.Writer = recordFormat, c.epochOf(old), c.writer.Identity
	if err := c.takeOver(ctx, old); err != nil {
		return nil, err
	}
	if old.Writer != c.writer.Identity && old.open() {
		c.setUnfenced(content.Component, true) // before the write, whose answer may be lost
	}
	packed, size, err := c.discovery.schemas.packer.pack(content)
	if err != nil {
		return nil, err
	}
	head := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: recordPrefix + content.Component, Namespace: v1alpha1.Namespace, ResourceVersion: old.version,
			Labels: map[string]string{RecordLabel: content.Component},
		},
		Type: "keelson.io/record", Data: map[string][]byte{keyRecord: packed},
	}
	var parts []string
	if len(packed) > secretSize {
		if parts, err = c.writeParts(ctx, old, packed); err != nil {
			return nil, err
		}
		names, err := json.Marshal(parts)
		if err != nil {
			return nil, fmt.Errorf("encode the names of parts: %w", err)
		}
		head.Data = map[string][]byte{keyParts: names}
	}
	version, err := c.writeSecret(ctx, &head)
	if err != nil {
		return nil, err
	}
	if old.Writer != c.writer.Identity {
		c.announcer.release(content.Component) // the claim is no longer needed
	}
	return &record{Record: content, version: version, sum: sumOf(&head), parts: parts, size: size}, nil
}

// deleteRecord deletes the record if it is still the version that was read.
func (c *Cluster) deleteRecord(ctx context.Context, old *record) error {
	c.forgetRecord(old.Component)
	next := noRecord(old.Component)
	err := c.takeOver(ctx, old)
	if err == nil && old.version != "" {
		if err = c.deleteRecordSecret(ctx, recordPrefix+old.Component, "", old.version); apierrors.IsNotFound(err) {
			err = nil
		}
	}
	if err == nil {
		c.announcer.release(old.Component)
		err = c.sweepParts(ctx, old, next)
	}
	if err != nil {
		return fmt.Errorf("cluster %s: delete the record of %s: %w", c.name, old.Component, err)
	}
	c.remember(next)
	return nil
}

// epochOf returns the epoch in which this session writes the record.
func (c *Cluster) epochOf(r *record) int64 {
	if r.Writer == c.writer.Identity {
		return r.Epoch
	}
	return r.Epoch + 1
}

// writeParts writes the Secrets of a large record. A name is made of the content and of the
// resourceVersion of the head that is to be replaced, and the Secrets never change. So one write of
// the head replaces them all, and no name is used twice.
func (c *Cluster) writeParts(ctx context.Context, old *record, packed []byte) ([]string, error) {
	chunks := slices.Collect(slices.Chunk(packed, secretSize))
	if len(chunks) > recordParts {
		return nil, fmt.Errorf("the record takes %d bytes, more than fit into %d Secrets: split the component", len(packed), recordParts)
	}
	c.litter(old.Component, true) // until the head that names them is written
	sum, immutable := sha256.Sum256(append([]byte(old.version+"\n"), packed...)), true
	var names []string
	for i, chunk := range chunks {
		s := corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name:      fmt.Sprintf("%s%s.%s.%d", recordPrefix, old.Component, hex.EncodeToString(sum[:8]), i),
				Namespace: v1alpha1.Namespace, Labels: map[string]string{partLabel: old.Component},
			},
			Type: "keelson.io/record-part", Immutable: &immutable, Data: map[string][]byte{keyPart: chunk},
		}
		if _, err := c.writeSecret(ctx, &s); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		names = append(names, s.Name)
	}
	return names, nil
}

// writeSecret creates the Secret, or replaces the one with its resourceVersion.
func (c *Cluster) writeSecret(ctx context.Context, s *corev1.Secret) (version string, err error) {
	var answer *corev1.Secret
	if s.ResourceVersion != "" {
		answer, err = c.secrets.Update(ctx, s, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager})
	} else {
		answer, err = c.secrets.Create(ctx, s, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
	}
	if err != nil {
		return "", fmt.Errorf("write Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return answer.ResourceVersion, nil
}
