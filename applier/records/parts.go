package records

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/deletion"
)

// maxParts is how many parts of records a cluster may have, including those that no record names.
const maxParts = 10_000

// partStore reads, writes and deletes the Secrets that hold large records.
type partStore struct {
	secrets Secrets

	mu sync.Mutex
	// littered are components that may have parts which no head names.
	littered map[string]bool
}

func newPartStore(secrets Secrets) *partStore {
	return &partStore{secrets: secrets, littered: map[string]bool{}}
}

func (s *partStore) isLittered(component string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.littered[component]
}

// litter records whether a component may have parts that no head names.
func (s *partStore) litter(component string, may bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.littered[component] = may
}

// findLitter searches all components for parts that no head names. A writer leaves them when it is
// killed before it has written its head, or right after. named reports whether a known head names a
// part.
func (s *partStore) findLitter(ctx context.Context, named func(component, part string) bool) error {
	return s.secrets.listParts(ctx, partLabel, func(part *metav1.PartialObjectMetadata) error {
		if component := part.Labels[partLabel]; !named(component, part.Name) {
			s.litter(component, true)
		}
		return nil
	})
}

// sweep deletes the parts that no head names and none will name, after this session replaced
// the head old by next, or deleted it. It compares resourceVersions. The writer of a part older
// than this session's head had read an older head, so its own head will be refused. A later part
// may belong to the next head, and stays. No later head reuses a name: the name depends on the head
// to be replaced.
func (s *partStore) sweep(ctx context.Context, old, next *Stored) error {
	if !s.isLittered(next.Component) && len(old.parts) == 0 {
		return nil
	}
	head := next.ResourceVersion
	if head == "" {
		head = old.ResourceVersion // the deleted head
	}
	s.litter(next.Component, true) // until the sweep is done
	err := s.secrets.listParts(ctx, partLabel+"="+next.Component, func(part *metav1.PartialObjectMetadata) error {
		if slices.Contains(next.parts, part.Name) {
			return nil
		}
		if order, err := resourceversion.CompareResourceVersion(part.ResourceVersion, head); err != nil || order >= 0 {
			return nil //nolint:nilerr // versions without an order do not tell which head needs the part
		}
		err := deletion.SendRecord(ctx, s.secrets.client, part.Name, part.UID, "")
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete Secret %s/%s: %w", v1alpha1.Namespace, part.Name, err)
		}
		return nil
	})
	if err == nil {
		s.litter(next.Component, false)
	}
	return err
}

// join reads the Secrets that hold the parts of a record.
func (s *partStore) join(ctx context.Context, head *corev1.Secret) (packed []byte, parts []string, err error) {
	if len(head.Data[keyParts]) == 0 {
		return head.Data[keyRecord], nil, nil
	}
	if err := json.Unmarshal(head.Data[keyParts], &parts); err != nil {
		return nil, nil, &unreadableError{fmt.Errorf("decode the parts of Secret %s: %w", head.Name, err)}
	}
	if len(parts) > recordParts {
		return nil, nil, &unreadableError{fmt.Errorf("the Secret %s names %d parts, more than %d", head.Name, len(parts), recordParts)}
	}
	for _, name := range parts {
		part, err := s.secrets.Get(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		if part == nil {
			return nil, nil, &missingPartError{name}
		}
		if len(packed)+len(part.Data[keyPart]) > recordParts*secretSize {
			return nil, nil, &unreadableError{fmt.Errorf("the parts that the Secret %s names have more than %d bytes", head.Name, recordParts*secretSize)}
		}
		packed = append(packed, part.Data[keyPart]...)
	}
	return packed, parts, nil
}

// write writes the Secrets of a large record. A name is made of the content and of the
// resourceVersion of the head that is to be replaced, and the Secrets never change. So one write of
// the head replaces them all, and no name is used twice.
func (s *partStore) write(ctx context.Context, old *Stored, packed []byte) ([]string, error) {
	chunks := slices.Collect(slices.Chunk(packed, secretSize))
	if len(chunks) > recordParts {
		return nil, fmt.Errorf("the record takes %d bytes, more than fit into %d Secrets: split the component", len(packed), recordParts)
	}
	s.litter(old.Component, true) // until the head that names them is written
	sum, immutable := sha256.Sum256(append([]byte(old.ResourceVersion+"\n"), packed...)), true
	var names []string
	for i, chunk := range chunks {
		part := corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name:      fmt.Sprintf("%s%s.%s.%d", recordPrefix, old.Component, hex.EncodeToString(sum[:8]), i),
				Namespace: v1alpha1.Namespace, Labels: map[string]string{partLabel: old.Component},
			},
			Type: "keelson.io/record-part", Immutable: &immutable, Data: map[string][]byte{keyPart: chunk},
		}
		if _, err := s.secrets.Write(ctx, &part); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		names = append(names, part.Name)
	}
	return names, nil
}
