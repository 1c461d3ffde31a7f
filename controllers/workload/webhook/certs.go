package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The keys of the certificate Secret. The next certificate serves only after every API server
// was configured to trust it.
const (
	keyTrust    = "ca.crt" // CA certificates to trust, PEM
	keyCert     = corev1.TLSCertKey
	keyKey      = corev1.TLSPrivateKeyKey
	keyNextCert = "next.crt"
	keyNextKey  = "next.key"
)

const (
	// lifetime of a certificate. Each certificate has its own CA, whose key is discarded.
	lifetime = 365 * 24 * time.Hour
	// The next certificate is made when 1/renewal of the lifetime is left.
	renewal = 3
)

// pair is a certificate with its CA and its key, as PEM.
type pair struct{ trust, cert, key []byte }

// newPair makes a CA and a certificate signed by it, for the names of a server. life is the
// validity of both.
func newPair(names []string, now time.Time, life time.Duration) (pair, error) {
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "keelson-workloads-ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make a key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make a key: %w", err)
	}
	leaf := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	var p pair
	for _, c := range []*x509.Certificate{ca, leaf} {
		// Valid since an hour ago, because clocks differ.
		c.NotBefore, c.NotAfter = now.Add(-time.Hour), now.Add(life)
		if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
			return pair{}, fmt.Errorf("choose a serial number: %w", err)
		}
	}
	for out, c := range map[*[]byte]struct {
		is     *x509.Certificate
		public *ecdsa.PublicKey
	}{&p.trust: {ca, &caKey.PublicKey}, &p.cert: {leaf, &key.PublicKey}} {
		der, err := x509.CreateCertificate(rand.Reader, c.is, ca, c.public, caKey)
		if err != nil {
			return pair{}, fmt.Errorf("sign a certificate: %w", err)
		}
		*out = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, fmt.Errorf("encode a key: %w", err)
	}
	p.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return p, nil
}

// certificates maintains the Secret, and serves the certificate in it. Every replica does this.
// The resourceVersion of the Secret prevents conflicting writes.
type certificates struct {
	client  client.Client // without a cache
	secret  client.ObjectKey
	names   []string // names of the server
	now     func() time.Time
	life    time.Duration
	serving atomic.Pointer[tls.Certificate]
}

var errNoCertificate = errors.New("there is no certificate yet")

// get implements [tls.Config.GetCertificate].
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if is := c.serving.Load(); is != nil {
		return is, nil
	}
	return nil, errNoCertificate
}

// refresh loads the certificate of the Secret for serving. It makes a certificate if there is no
// valid one, and the next certificate in time. It returns when to call it again at the latest.
func (c *certificates) refresh(ctx context.Context) (again time.Duration, err error) {
	var secret corev1.Secret
	err = c.client.Get(ctx, c.secret, &secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return 0, fmt.Errorf("read the certificates: %w", err)
	}
	current, leaf, err := parse(secret.Data[keyCert], secret.Data[keyKey], c.names)
	if err != nil || !c.now().Before(leaf.NotAfter) {
		// The existing certificate is unusable or expired.
		next, err := newPair(c.names, c.now(), c.life)
		if err != nil {
			return 0, err
		}
		secret.Data = map[string][]byte{keyTrust: next.trust, keyCert: next.cert, keyKey: next.key}
		return 0, c.write(ctx, &secret, missing)
	}
	c.serving.Store(current)
	renew := leaf.NotAfter.Add(-c.life / renewal)
	if wait := renew.Sub(c.now()); wait > 0 {
		return wait, nil
	}
	if _, _, err := parse(secret.Data[keyNextCert], secret.Data[keyNextKey], c.names); err == nil {
		return c.life / renewal / renewal, nil // promote waits until it is trusted
	}
	next, err := newPair(c.names, c.now(), c.life)
	if err != nil {
		return 0, err
	}
	secret.Data[keyTrust] = append(bytes.Clone(next.trust), newest(secret.Data[keyTrust])...)
	secret.Data[keyNextCert], secret.Data[keyNextKey] = next.cert, next.key
	return 0, c.write(ctx, &secret, false)
}

// promote makes the next certificate the serving one. The caller must have published its CA
// everywhere.
func (c *certificates) promote(ctx context.Context, secret *corev1.Secret) error {
	if len(secret.Data[keyNextCert]) == 0 {
		return nil
	}
	secret = secret.DeepCopy()
	secret.Data[keyCert], secret.Data[keyKey] = secret.Data[keyNextCert], secret.Data[keyNextKey]
	delete(secret.Data, keyNextCert)
	delete(secret.Data, keyNextKey)
	return c.write(ctx, secret, false)
}

// write creates or updates the Secret. If another replica was faster, that is not an error: its
// certificates are valid too, and the watch reports them.
func (c *certificates) write(ctx context.Context, secret *corev1.Secret, create bool) error {
	var err error
	if create {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: c.secret.Namespace, Name: c.secret.Name, Labels: map[string]string{"app.kubernetes.io/part-of": "keelson"}}
		secret.Type = corev1.SecretTypeTLS
		err = c.client.Create(ctx, secret)
	} else {
		err = c.client.Update(ctx, secret)
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("keep the certificates: %w", err)
	}
	return nil
}

// parse parses a certificate with its key. It returns an error if the certificate is not valid
// for all names.
func parse(cert, key []byte, names []string) (*tls.Certificate, *x509.Certificate, error) {
	both, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, nil, fmt.Errorf("read a certificate: %w", err)
	}
	for _, name := range names {
		if err := both.Leaf.VerifyHostname(name); err != nil {
			return nil, nil, fmt.Errorf("read a certificate: %w", err)
		}
	}
	return &both, both.Leaf, nil
}

// newest returns the first certificate of a bundle: the CA of the serving certificate.
func newest(trust []byte) []byte {
	block, _ := pem.Decode(trust)
	if block == nil {
		return nil
	}
	return pem.EncodeToMemory(block)
}
